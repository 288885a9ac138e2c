"""What is measured of every method on every task of the paper, and how a method is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from bench.problems import Problem
from core.kprior import (
    PAPER,
    Cost,
    Data,
    MemoryPolicy,
    Method,
    Result,
    Select,
    State,
    Training,
    adapt,
    certify,
    reselect,
)

TOP = Select.CURVATURE
TEMPERATURE = replace(PAPER, temperature=5.0, labels=0.5)
"""The paper's K-prior with a temperature and half of the true labels (Figs. 3c and 3d); for another architecture, where
no weights are shared, it is distillation.
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
    """Backward passes until the test accuracy first touches a level; None if it never did."""

    task: str
    seed: int
    method: str
    to_90: int | None
    to_97: int | None


def run_method(
    base: State,
    problem: Problem,
    data: Data,
    fraction: float,
    select: Select,
    method: Method,
    seed: int,
    balance: bool = False,
    training: Training | None = None,
) -> Result:
    """Choose a memory of the given share, then adapt."""
    chosen = choose(base, data, fraction, select, seed, balance)
    training = replace_seed(training or Training(), seed + 500)
    policy = policy_of(fraction, select, balance)
    return adapt(chosen.state, chosen.memory, problem.tasks, method=method, training=training, policy=policy)


def choose(base: State, data: Data, fraction: float, select: Select, seed: int, balance: bool = False) -> Result:
    """The base with a memory of the given share."""
    return reselect(base, data, policy_of(fraction, select, balance), seed)


def policy_of(fraction: float, select: Select, balance: bool) -> MemoryPolicy:
    return MemoryPolicy(fraction, cap=10**9, select=select, balance=balance and fraction < 1)


def timed(like: Result, way: Callable[[], tuple[Tensor, int]]) -> Result:
    """What a way gives that makes weights and no state: it is asked for nothing but its predictions."""
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

    def decide(self, state: State) -> Tensor:
        return state.predictor.family.decide(state.predictor.outputs(state.w, self.problem.test.x))

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
        return Figure(
            self.problem.name,
            self.problem.task,
            seed,
            method,
            fraction,
            len(result.memory) if memory is None else memory,
            100 * float((said == self.problem.labels).double().mean()),
            100 * float((said != self.decide(truth)).double().mean()),
            distance,
            bound,
            result.cost.backward_passes,
            result.cost.seconds,
        )
