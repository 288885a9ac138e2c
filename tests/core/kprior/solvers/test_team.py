"""Training in a team: each takes a share of every minibatch, and all arrive where one alone would."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch
from torch import Tensor

from bench.paper.objective.build import build_objective
from bench.paper.objective.methods import OURS
from core.kprior import AddData, Cost, Examples, MemoryPolicy, RemoveData, Training, train
from core.kprior.model.predictor import Predictor
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.solvers import Solution
from core.kprior.solvers.adam import adam
from core.kprior.solvers.checkpoint import Checkpoint, Checkpoints
from tests.core.kprior.problems import examples_of, rows, spec_of

MLP = {"kind": "mlp", "hidden": [5]}


class Threads:
    """A team of threads: what each gives is added up in the same order for all."""

    def __init__(self, world: int) -> None:
        self.given: list[Tensor | None] = [None] * world
        self.barrier = Barrier(world, timeout=60)

    def member(self, rank: int) -> Member:
        return Member(self, rank)


class Member:
    def __init__(self, team: Threads, rank: int) -> None:
        self.team, self.rank, self.world = team, rank, len(team.given)

    def sum(self, values: Tensor) -> Tensor:
        self.team.given[self.rank] = values
        self.team.barrier.wait()
        total = torch.stack([given for given in self.team.given if given is not None]).sum(0)
        self.team.barrier.wait()
        return total


def objective_of(data: Examples, task: str) -> tuple[Objective, Tensor]:
    """A full retrain, or an adaptation with memory, mixed inputs, additions and removals."""
    spec = spec_of("classes", 3, MLP)
    if task == "train":
        predictor = Predictor(spec, seed=1)
        w = predictor.initial_weights()
        return Objective(predictor, torch.full_like(w, 0.5), torch.zeros_like(w), [Term(predictor, [data])]), w
    past = train(spec, [rows(data, 0, 80)], training=Training(max_epochs=2), policy=MemoryPolicy(0.2))
    changes = [AddData([rows(data, 80, 100)]), RemoveData([rows(data, 0, 9)])]
    problem = build_objective(past.state, past.memory, changes, OURS, Cost())
    return problem.objective, problem.start


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("task", ["train", "adapt"])
def test_a_team_takes_the_steps_of_one(task: str, world: int) -> None:
    data, training = examples_of("classes", 100, 3), Training(max_epochs=4, batch_size=16)

    def alone() -> tuple[Solution, Cost]:
        cost = Cost()
        return adam(*objective_of(data, task), training, cost), cost

    # made beforehand: first weights come from torch's one generator, which threads would share
    posed = [objective_of(data, task) for _ in range(world)]

    def as_member(member: Member) -> tuple[Solution, Cost]:
        cost = Cost()
        return adam(*posed[member.rank], training, cost, team=member), cost

    (one, spent), team = alone(), Threads(world)
    with ThreadPoolExecutor(world) as threads:
        found = list(threads.map(as_member, map(team.member, range(world))))
    for solution, cost in found:
        assert torch.equal(solution.w, found[0][0].w)
        torch.testing.assert_close(solution.w, one.w, rtol=1e-3, atol=1e-4)
        assert solution.converged == one.converged
        assert (cost.backward_passes, cost.data_passes) == (spent.backward_passes, spent.data_passes)
    assert not torch.allclose(one.w, objective_of(data, task)[1])


@pytest.mark.parametrize("architecture", ["mlp", "cifarnet"])  # the second has dropout
def test_a_training_that_is_resumed_ends_where_it_would_have(architecture: str) -> None:
    training = Training(max_epochs=4, batch_size=8, patience=1)
    data = examples_of("binary", 20, 16 * 16)
    data = replace(data, x=data.x.reshape(-1, 1, 16, 16).float())
    spec = {**spec_of("binary", 1, {"kind": architecture}), "input": {"kind": "image", "shape": [1, 16, 16]}}

    def objective() -> tuple[Objective, Tensor]:
        predictor = Predictor(spec, seed=1)
        w = predictor.initial_weights()
        return Objective(predictor, torch.full_like(w, 0.5), torch.zeros_like(w), [Term(predictor, [data])]), w

    kept: list[bytes] = []
    whole = Cost()
    one = adam(
        *objective(),
        training,
        whole,
        checkpoints=Checkpoints(keep=lambda checkpoint: kept.append(checkpoint.to_bytes())),
    )
    assert len(kept) > 1
    for data_ in kept:
        spent = Cost()
        other = adam(*objective(), training, spent, checkpoints=Checkpoints(Checkpoint.from_bytes(data_)))
        assert torch.equal(one.w, other.w)
        assert (one.converged, whole) == (other.converged, spent)
