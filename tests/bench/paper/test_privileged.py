"""Privileged information: a teacher with a column that nobody has at prediction time, and a student without it."""

from __future__ import annotations

import pytest
import torch

from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import distillation
from core.kprior import (
    ChangeInput,
    ChangeRegularizer,
    ChangeTarget,
    Examples,
    MemoryPolicy,
    Result,
    train,
)
from core.kprior.data.schema_conversion import input_conversion
from core.kprior.model.spec import Regularizer, Spec, TableInput
from tests.core.kprior.problems import l2

COLUMNS = 12
NAMES = [f"x{i}" for i in range(COLUMNS)]
ALL: TableInput = {"kind": "table", "columns": [{"name": n, "type": "number"} for n in [*NAMES, "report"]]}
LESS: TableInput = {"kind": "table", "columns": [{"name": n, "type": "number"} for n in NAMES]}
EVERYTHING = MemoryPolicy(fraction=1.0, cap=10**9)


PLAIN = l2(0.1)
LEANING: Regularizer = {**PLAIN, "columns": dict.fromkeys(NAMES, 100.0)}
"""A teacher that leans on what is known afterwards: all other columns are held back."""


def spec_of(table: TableInput, regularizer: Regularizer = PLAIN) -> Spec:
    return {
        "input": table,
        "target": {"kind": "binary"},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": regularizer,
    }


def examples_of(count: int, seed: int) -> Examples:
    """Yes or no by chance; the report, written afterwards, says how likely it was."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, COLUMNS, generator=generator, dtype=torch.float64)
    odds = 2 * x @ torch.linspace(1, -1, COLUMNS, dtype=torch.float64)
    y = torch.rand(count, generator=generator) < odds.sigmoid()
    return Examples(torch.arange(count), torch.cat([x, odds[:, None]], 1), y.double()[:, None])


def without_report(rows: Examples) -> Examples:
    return Examples(rows.key, rows.x[:, :-1], rows.y)


def drop_report(teacher: Result) -> Result:
    tasks = [ChangeInput(LESS, input_conversion(ALL, LESS)), ChangeRegularizer(PLAIN)]
    method = distillation(temperature=1.0, labels=0.0)
    return adapt_by(method, teacher.state, teacher.memory, tasks, policy=EVERYTHING)


@pytest.mark.parametrize("seed", range(3))
def test_a_taught_student_is_nearer_to_its_teacher_and_to_the_truth_than_one_without(seed: int) -> None:
    rows, unseen = examples_of(60, seed), examples_of(4_000, seed + 100)
    teacher = train(spec_of(ALL, LEANING), [rows], policy=EVERYTHING)
    alone = train(spec_of(LESS), [without_report(rows)])
    taught = drop_report(teacher)

    def means(result: Result, x: torch.Tensor) -> torch.Tensor:
        predictor = result.state.predictor
        return predictor.family.mean(predictor.outputs(result.state.w, x))

    said, odds = means(teacher, unseen.x), unseen.x[:, -1:].sigmoid()
    by = {name: means(result, without_report(unseen).x) for name, result in (("taught", taught), ("alone", alone))}
    assert taught.state.predictor.encoder.raw_shape == (COLUMNS,)
    assert (by["taught"] - said).abs().mean() < 0.5 * (by["alone"] - said).abs().mean()
    assert (by["taught"] - odds).abs().mean() < 0.6 * (by["alone"] - odds).abs().mean()


def test_a_student_is_fitted_to_the_predictions_of_its_teacher() -> None:
    rows = examples_of(80, 0)
    teacher = train(spec_of(ALL, LEANING), [rows], policy=EVERYTHING)
    said = teacher.state.predictor.family.mean(teacher.state.predictor.outputs(teacher.state.w, rows.x))
    student = Examples(rows.key, rows.x[:, :-1], said)
    truth = train(spec_of(LESS), [student]).state.w  # units of columns are the same: they are of the same rows
    torch.testing.assert_close(drop_report(teacher).state.w, truth, rtol=1e-6, atol=1e-8)


def test_a_teacher_of_other_classes_is_refused() -> None:
    teacher = train(spec_of(ALL), [examples_of(40, 0)], policy=EVERYTHING)
    tasks = [
        ChangeInput(LESS, input_conversion(ALL, LESS)),
        ChangeTarget({"kind": "classes", "values": [0, 1, 2]}, (0.0, 1.0)),
    ]
    with pytest.raises(ValueError, match="other classes"):
        adapt_by(distillation(), teacher.state, teacher.memory, tasks)
