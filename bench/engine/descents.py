"""Networks: the alternatives to adaptation, retrains from several seeds and warm descent with a tuned learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bench.engine.clock import timed
from bench.engine.network_tasks import NetworkTask
from core.kprior import Cost, Examples, Predictor, Result, State, Training, train
from core.kprior.model.regularizers import regularizer_of
from core.kprior.model.spec import Spec
from core.kprior.objective.transfer import transplant
from core.kprior.solvers.budgeted_adam import Cooling, MeanPenalty, descend

RATES = (5e-4, 1e-3, 2e-3, 4e-3)
BATCH = 64
MULTIPLES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Multiples of our row visits that a warm descent is given in turn, until it is as good."""


class Network(NamedTuple):
    """The predictions of a network."""

    predictor: Predictor
    w: Tensor

    @classmethod
    def of(cls, state: State) -> Network:
        return cls(state.predictor, state.w)

    def outputs(self, x: Tensor) -> Tensor:
        """(n, K) for any number of rows."""
        with torch.no_grad():
            return torch.cat([self.predictor.outputs(self.w, part) for part in x.split(2048)])

    def decide(self, x: Tensor) -> Tensor:
        """The class of each row."""
        return self.predictor.family.decide(self.outputs(x))

    def losses(self, rows: Examples) -> Tensor:
        """The loss of each row."""
        f = self.outputs(rows.x)
        return self.predictor.family.loss(rows.y.to(f), f)


@dataclass(frozen=True)
class Trained:
    """A training and the CPU seconds it took."""

    result: Result
    cpu: float


class Trainings:
    """A cache of trainings from scratch: tasks share bases and retrains."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self._made: dict[tuple[str, int], Trained] = {}

    def get(self, key: str, spec: Spec, rows: Examples, seed: int) -> Trained:
        """The network of these rows from this seed."""
        if (key, seed) not in self._made:
            training = Training(**{**self.training.__dict__, "seed": seed})
            with timed() as spent:
                result = train(spec, rows.chunks(10_000), training=training)
            self._made[key, seed] = Trained(result, spent.cpu)
        return self._made[key, seed]


class Warm(NamedTuple):
    """A warm descent that was good enough, or else the longest one with the best learning rate."""

    network: Network
    visits: int
    cpu: float
    rate: float
    enough: bool


def warm_descent(
    start: State, spec: Spec, steps: Iterable[Examples], visits: list[int], rate: float, seed: int
) -> tuple[Network, float, int]:
    """Descend from the old weights on all retained rows, after each job of a task; CPU seconds, row visits."""
    predictor, w, cost = start.predictor, start.w, Cost()
    cpu = 0.0
    for rows, max_visits in zip(steps, visits, strict=True):
        with timed() as spent:
            if predictor.spec["architecture"] != spec["architecture"]:
                predictor = Predictor(spec, seed)
                predictor.encoder.load_state_dict(start.predictor.encoder.state_dict())
                w = transplant(start, predictor)
            step_loss = minibatch_loss(predictor, rows, seed)
            regularizer = regularizer_of(spec["regularizer"], predictor)
            count = max(1, max_visits // BATCH)
            w = descend(w, step_loss, count, cost, cooling=Cooling(rate), penalty=MeanPenalty(regularizer, len(rows))).w
        cpu += spent.cpu
    return Network(predictor, w), cpu, cost.backward_passes


def minibatch_loss(predictor: Predictor, rows: Examples, seed: int) -> Callable[[Tensor], tuple[Tensor, int]]:
    """The mean loss of one random minibatch after another."""
    generator = torch.Generator().manual_seed(seed)

    def step_loss(w: Tensor) -> tuple[Tensor, int]:
        some = torch.randint(len(rows), (BATCH,), generator=generator)
        z = predictor.encode(rows.x[some])
        f = predictor.outputs_of_encoded(w, z, training=True)
        return predictor.family.loss(rows.y[some].to(f), f).mean(), BATCH

    return step_loss


def cheapest_warm(
    task: NetworkTask, start: State, ours: list[int], lack: Callable[[Network], float], seed: int
) -> Warm:
    """The fewest row visits with which a warm descent is as good as ours, with the best learning rate.

    `lack` tells how far a network is from that, zero or less if it is there; `ours` are our visits in each job.
    """
    steps = [rows for _, _, rows in task.steps()]
    best: Warm | None = None
    for multiple in MULTIPLES:
        visits = [max(BATCH, round(multiple * each)) for each in ours]
        tried = []
        for rate in RATES:
            network, cpu, seen = warm_descent(start, task.new_spec, steps, visits, rate, seed)
            short = lack(network)
            tried.append((short, Warm(network, seen, cpu, rate, short <= 0)))
        best = min(tried, key=lambda item: item[0])[1]
        if best.enough:
            break
    assert best is not None
    return best
