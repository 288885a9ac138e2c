"""The results of a method on a task of the paper, and how a method is run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import OURS, PAPER, Method
from bench.problems import Problem
from bench.reselection import reselect
from core.kprior import (
    Cost,
    Data,
    MemoryPolicy,
    Result,
    Select,
    State,
    Training,
    adapt,
    certify,
)

TOP = Select.CURVATURE
TEMPERATURE = replace(PAPER, temperature=5.0, labels=0.5)
"""The paper's K-prior with a temperature and half of the true labels (Figs. 3c and 3d). For another architecture,
which shares no weights, it is distillation.
"""


@dataclass(frozen=True)
class Figure:
    """One method on one task with one memory."""

    problem: str
    task: str
    seed: int
    method: str
    fraction: float
    memory: int
    accuracy: float
    disagreement: float
    weight_distance: float | None
    bound: float | None
    backward_passes: int
    seconds: float


@dataclass(frozen=True)
class Passes:
    """Backward passes until the test accuracy first reaches a level; None if it never did."""

    task: str
    seed: int
    method: str
    to_90: int | None
    to_97: int | None


@dataclass(frozen=True)
class Memory:
    """Which fraction of the past is remembered, and which examples."""

    fraction: float
    select: Select
    balance: bool = False
    """The same number of examples from each class."""

    @property
    def policy(self) -> MemoryPolicy:
        return MemoryPolicy(self.fraction, cap=10**9, select=self.select, balance=self.balance and self.fraction < 1)


def run_method(
    base: State,
    problem: Problem,
    data: Data,
    memory: Memory,
    method: Method,
    seed: int,
    training: Training | None = None,
) -> Result:
    """Choose a memory, then adapt."""
    return adapt_chosen(choose(base, data, memory, seed), problem, memory, method, seed, training)


def adapt_chosen(
    chosen: Result, problem: Problem, memory: Memory, method: Method, seed: int, training: Training | None = None
) -> Result:
    """Adapt a base whose memory is chosen."""
    training = replace_seed(training or Training(), seed + 500)
    options = {"training": training, "policy": memory.policy}
    if method == OURS and chosen.state.predictor.linear:
        return adapt(chosen.state, chosen.memory, problem.tasks, **options)  # type: ignore[arg-type]
    past = problem.base.chunks(4096)
    return adapt_by(method, chosen.state, chosen.memory, problem.tasks, **options, inputs=past)  # type: ignore[arg-type]


def choose(base: State, data: Data, memory: Memory, seed: int) -> Result:
    """The base with another memory."""
    return reselect(base, data, memory.policy, seed)


def timed(like: Result, way: Callable[[], tuple[Tensor, int]]) -> Result:
    """The result of a method that returns weights and no state; only its predictions are used."""
    cost = Cost()
    with cost.timed():
        w, cost.backward_passes = way()
    return Result(replace(like.state, w=w), like.memory, cost, True)


def replace_seed(training: Training, seed: int) -> Training:
    return Training(**{**asdict(training), "seed": seed})


class Reporter:
    """Compares results with the full retrain."""

    def __init__(self, problem: Problem, batch: Result) -> None:
        self.problem, self.batch = problem, batch
        self.truth = self.decide(batch.state)
        """The full retrain's predictions for the test rows."""

    def decide(self, state: State) -> Tensor:
        chunks = self.problem.test.x.split(1024)
        return state.predictor.family.decide(torch.cat([state.predictor.outputs(state.w, x) for x in chunks]))

    def __call__(
        self,
        method: str,
        fraction: float,
        seed: int,
        result: Result,
        bound: float | None = None,
        memory: int | None = None,
    ) -> Figure:
        state, truth = result.state, self.batch.state
        said, distance = self.decide(state), None
        if state.predictor.linear and state.w.shape == truth.w.shape:
            distance = float((state.w - truth.w).norm() / truth.w.norm())
            if bound is None and method in ("ours", "paper"):
                data = self.problem.retained.chunks(1024)
                bound = certify(state, result.memory, data).certificate.relative
        figure = Figure(
            self.problem.name,
            self.problem.task,
            seed,
            method,
            fraction,
            len(result.memory) if memory is None else memory,
            100 * float((said == self.problem.labels).double().mean()),
            100 * float((said != self.truth).double().mean()),
            distance,
            bound,
            result.cost.backward_passes,
            result.cost.seconds,
        )
        # a task with networks takes long, and its table comes at the end
        what = f"{figure.problem} {figure.task}, seed {seed}: {method}, {fraction:.0%}"
        print(f"{what}: {figure.accuracy:.2f} % ({figure.disagreement:.2f} % differ)", file=sys.stderr, flush=True)
        return figure
