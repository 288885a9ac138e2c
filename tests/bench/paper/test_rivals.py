"""The paper's limit and its rivals: each is what its name says."""

from __future__ import annotations

import pytest
import torch

from bench.paper.limit import Pieces, directions_prior, optimal_prior
from bench.paper.rivals import fromp, gem
from bench.problems import Problem
from core.kprior import AddData, ChangeRegularizer, Examples, RemoveData, Result, Task, train
from core.kprior.curvature import Full
from core.kprior.model.spec import Spec

ROWS, COLUMNS = 120, 4


def spec(kind: str = "binary", delta: float = 1.0) -> Spec:
    return {
        "input": {"kind": "vector", "dim": COLUMNS},
        "target": {"kind": kind},  # type: ignore[typeddict-item]
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": True},
    }


def problem_of(task: str, kind: str = "binary") -> tuple[Result, Problem, Result]:
    """The base, a task, and the full retrain."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    f = x @ torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.float64) + torch.randn(ROWS, generator=generator)
    y = (f > 0).double() if kind == "binary" else f
    rows = Examples(torch.arange(ROWS), x, y[:, None])
    some, others = rows.take(x[:, 0] > 0.7), rows.take(x[:, 0] <= 0.7)
    base, retained, new = rows, rows, spec(kind)
    tasks: list[Task]
    if task == "add":
        base, tasks = others, [AddData([some])]
    elif task == "remove":
        retained, tasks = others, [RemoveData([some])]
    else:
        new = spec(kind, 5.0)
        tasks = [ChangeRegularizer(new["regularizer"])]
    problem = Problem("made", task, spec(kind), base, tasks, new, retained, rows)
    return train(spec(kind), [base]), problem, train(new, [retained])


def distance(w: torch.Tensor, truth: torch.Tensor) -> float:
    return float((w - truth).norm() / truth.norm())


@pytest.mark.parametrize("task", ["add", "remove", "regularizer"])
def test_optimal_prior_is_the_retrain_once_it_has_as_many_directions_as_the_rank(task: str) -> None:
    base, problem, batch = problem_of(task)
    pieces = Pieces.of(base.state, problem)
    errors = [distance(optimal_prior(pieces, size, pieces.old), batch.state.w) for size in (2, COLUMNS + 1)]
    assert errors[1] < 1e-6 < errors[0]


def test_directions_with_fixed_weights_have_the_curvature_and_are_exact_for_numbers_alone() -> None:
    for kind, exact in (("number", True), ("binary", False)):
        base, problem, batch = problem_of("add", kind)
        pieces = Pieces.of(base.state, problem)
        error = distance(directions_prior(pieces, COLUMNS + 1, pieces.old), batch.state.w)
        assert (error < 1e-6) == exact


def test_fromp_has_the_past_to_second_order_and_is_exact_for_numbers() -> None:
    for kind, share in (("number", 1e-4), ("binary", 0.5)):
        base, problem, batch = problem_of("add", kind)
        curvature = base.state.curvature
        assert isinstance(curvature, Full)
        memory = problem.base.take(torch.arange(0, len(problem.base), 4))  # more rows than weights
        w, spent = fromp(base.state, problem, memory, curvature)
        assert spent > 0
        assert distance(w, batch.state.w) < share * distance(base.state.w, batch.state.w)


def test_gem_lets_the_memory_lose_no_more_than_before() -> None:
    base, problem, _ = problem_of("add")
    memory, predictor = problem.base, base.state.predictor

    def loss(w: torch.Tensor, rows: Examples) -> float:
        return float(predictor.family.loss(rows.y, predictor.outputs(w, rows.x)).sum())

    [added] = [chunk for task in problem.tasks if isinstance(task, AddData) for chunk in task.data]
    w, _ = gem(base.state, problem, memory)
    assert loss(w, memory) <= loss(base.state.w, memory) * (1 + 1e-5)
    assert loss(w, added) < loss(base.state.w, added)


def test_rivals_refuse_what_they_are_not_for() -> None:
    base, problem, _ = problem_of("remove")
    with pytest.raises(ValueError, match="added examples only"):
        gem(base.state, problem, problem.base)
