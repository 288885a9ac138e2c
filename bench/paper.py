"""The paper's tasks, every method at every memory share; and how many backward passes networks need."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bench.problems import FRACTIONS, TASKS, Problem, adult, usps
from bench.report import draw, tables
from core.kprior import (
    OURS,
    PAPER,
    REPLAY,
    WEIGHT_PRIOR,
    Cost,
    Data,
    Examples,
    MemoryPolicy,
    Method,
    Result,
    Select,
    State,
    Training,
    adapt,
    certify,
    measurement,
    refine,
    reselect,
    train,
)
from core.kprior.objective import terms

FULL_BATCH = Training(learning_rate=0.005, batch_size=None, max_epochs=1000, patience=None)
"""The paper's training of networks: Adam 0.005, 1000 epochs of all rows at once."""
TOP = Select.CURVATURE


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


def run(data: Path, json: Path | None, folder: Path, seeds: int, only: str, processes: int) -> None:
    """Run all parts whose name contains `only`, print the tables, draw the figures."""
    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has no edge to wrap at
    jobs: list[tuple[str, Path, str, int]] = []
    for seed in range(seeds):
        jobs += [("usps-mlp", data, "", seed), ("passes", data, "", seed)]
    for task in TASKS:
        jobs += [("usps-linear", data, task, 0)]
        jobs += [("adult", data, task, seed) for seed in range(43, 43 + 2 * seeds)]
    jobs = [job for job in jobs if only in job[0]]
    figures: list[Figure] = []
    passes: list[Passes] = []
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(measure, *job, seeds) for job in jobs]
        for future in track(as_completed(futures), "tasks", total=len(futures), console=console):
            for item in future.result():
                (figures if isinstance(item, Figure) else passes).append(item)  # type: ignore[arg-type]
            if json is not None:
                everything = {"figures": [asdict(f) for f in figures], "passes": [asdict(p) for p in passes]}
                json.write_text(json_module.dumps(everything, indent=1))
    tables(console, figures, passes)
    for path in draw(figures, folder):
        console.print(f"wrote {path}")


def measure(part: str, data: Path, task: str, seed: int, repeats: int) -> list[Figure | Passes]:
    """One part with one seed (GLMs: one task of it); runs in a process of its own."""
    torch.set_num_threads(1)
    if part in ("usps-mlp", "passes"):
        work = count_passes if part == "passes" else compare_network
        retrain.cache_clear()
        return [item for task in TASKS for item in work(usps(data, task, network=True), seed)]
    if part == "usps-linear":
        terms.CACHE_BYTES = 2**32  # degree 2 of 256 inputs is 2 GB, and L-BFGS reads it some hundred times
        return list(compare_linear(usps(data, task, network=False), range(repeats)))
    return list(compare_linear(adult(data, task, seed), [seed]))


def compare_linear(problem: Problem, seeds: range | list[int]) -> Iterator[Figure]:
    """GLMs: the base is the same for all seeds, which only draw the memory."""
    chunks = problem.base.chunks(1024)
    base = train(problem.spec, chunks).state
    batch = train(problem.new_spec, problem.retained.chunks(1024))
    say = Reporter(problem, batch)
    yield say("batch", 1.0, seeds[0], batch)
    yield say("weight prior", 0.0, seeds[0], run_method(base, problem, chunks, 0.02, Select.RANDOM, WEIGHT_PRIOR, 0))
    for fraction in FRACTIONS:
        for seed in seeds:
            if seed == seeds[0]:
                for name, method in (("paper", PAPER), ("replay", REPLAY)):
                    # as in the reference: class-balanced top h' of the rows that stay
                    result = run_method(base, problem, problem.past.chunks(1024), fraction, TOP, method, 0, True)
                    yield say(name, fraction, seed, result)
            ours = run_method(base, problem, chunks, fraction, Select.AUTO, OURS, seed)
            yield say("ours", fraction, seed, ours)
            for rounds in (1, 2):
                data = problem.retained.chunks(1024)
                refined = refine(ours.state, ours.memory, data, tolerance=0.0, rounds=rounds)
                done = Result(refined.state, ours.memory, ours.cost + refined.cost, True)
                bound = refined.certificate.relative
                yield say(f"ours + {rounds} pass{'es' * (rounds > 1)}", fraction, seed, done, bound)


def compare_network(problem: Problem, seed: int) -> Iterator[Figure]:
    """Networks: base, batch and memory all depend on the seed."""
    chunks = problem.base.chunks(4096)
    base = retrain(Whole(problem.spec, problem.base), replace_seed(FULL_BATCH, seed)).state
    batch = retrain(Whole(problem.new_spec, problem.retained), replace_seed(FULL_BATCH, seed + 1000))
    say = Reporter(problem, batch)
    yield say("batch", 1.0, seed, batch)
    ours = retrain(Whole(problem.new_spec, problem.retained), Training(seed=seed + 1000))
    yield say("batch, our solver", 1.0, seed, ours)
    if problem.task != "model":  # another architecture has no weights in common to have a prior on
        yield say("weight prior", 0.0, seed, weight_prior(base, problem, seed))
    for fraction in FRACTIONS:
        yield say("ours", fraction, seed, run_method(base, problem, chunks, fraction, Select.AUTO, OURS, seed))
        past = problem.past.chunks(4096)
        paper = run_method(base, problem, past, fraction, TOP, PAPER, seed, True, FULL_BATCH)
        yield say("paper", fraction, seed, paper)
        if fraction < 1:
            replay = run_method(base, problem, past, fraction, TOP, REPLAY, seed, True, FULL_BATCH)
            yield say("replay", fraction, seed, replay)


class Whole:
    """A spec and all its rows, equal where both are: tasks share base models and retrains."""

    def __init__(self, spec: dict[str, object], rows: Examples) -> None:
        self.spec, self.rows = spec, rows
        self.key = (json_module.dumps(spec, sort_keys=True), len(rows))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@cache
def retrain(whole: Whole, training: Training) -> Result:
    """Train from scratch, once for each problem."""
    return train(whole.spec, [whole.rows], training=training)


def weight_prior(base: State, problem: Problem, seed: int) -> Result:
    """A network's quadratic around w*, with Kronecker factors of the GGN (one pass makes them)."""
    policy = MemoryPolicy(0.02, select=Select.RANDOM)
    data = problem.base.chunks(512)
    asked = (base.predictor, base.regularizer, base.w, data, policy.size(base.count), policy, "kronecker", Cost())
    past = measurement.measure(*asked)
    state = replace(base, anchor=past.anchor, memory=past.memory)
    training = Training(seed=seed + 500)
    return adapt(state, past.rows, problem.tasks, method=WEIGHT_PRIOR, training=training, policy=policy)


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
    policy = MemoryPolicy(fraction, cap=10**9, select=select, balance=balance and fraction < 1)
    chosen = reselect(base, data, policy, seed)
    training = replace_seed(training or Training(), seed + 500)
    return adapt(chosen.state, chosen.memory, problem.tasks, method=method, training=training, policy=policy)


def replace_seed(training: Training, seed: int) -> Training:
    return Training(**{**asdict(training), "seed": seed})


class Reporter:
    """Compares results with the full retrain."""

    def __init__(self, problem: Problem, batch: Result) -> None:
        self.problem, self.batch = problem, batch

    def decide(self, state: State) -> Tensor:
        return state.predictor.family.decide(state.predictor.outputs(state.w, self.problem.test.x))

    def __call__(self, method: str, fraction: float, seed: int, result: Result, bound: float | None = None) -> Figure:
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
            len(result.memory),
            100 * float((said == self.problem.test.y[:, 0].long()).double().mean()),
            100 * float((said != self.decide(truth)).double().mean()),
            distance,
            bound,
            result.cost.backward_passes,
            result.cost.seconds,
        )


def count_passes(problem: Problem, seed: int) -> Iterator[Passes]:
    """Backward passes to 90 % and 97 % with a memory of 10 %."""
    base = retrain(Whole(problem.spec, problem.base), replace_seed(FULL_BATCH, seed)).state
    cold = Training(seed=seed + 1000, warm_start=False)

    def batch(training: Training) -> Callable[[Stopwatch], object]:
        return lambda watch: train(problem.new_spec, [problem.retained], training=training, watch=watch)

    def adapted(select: Select, method: Method, training: Training) -> Callable[[Stopwatch], object]:
        paper = select is TOP
        policy = MemoryPolicy(0.1, select=select, balance=paper)
        chosen = reselect(base, [problem.past if paper else problem.base], policy, seed)
        return lambda watch: adapt(
            chosen.state, chosen.memory, problem.tasks, method=method, training=training, watch=watch
        )

    slow = Training(**{**asdict(FULL_BATCH), "seed": seed + 1000, "warm_start": False})
    ways = {
        "batch": batch(slow),
        "batch, our solver": batch(cold),
        "paper": adapted(TOP, PAPER, slow),
        "ours, random start": adapted(Select.AUTO, OURS, cold),
        "ours": adapted(Select.AUTO, OURS, Training(seed=seed + 1000)),
    }
    for name, way in ways.items():
        watch = Stopwatch(problem, base if name == "ours" and problem.task != "model" else None)
        if not watch.done:
            way(watch)
        yield Passes(problem.task, seed, name, watch.reached.get(90), watch.reached.get(97))


class Stopwatch:
    """Notes when the test accuracy first touches the levels; looks at most every 500 backward passes."""

    def __init__(self, problem: Problem, start: State | None) -> None:
        self.problem, self.reached, self._next = problem, dict[int, int](), 0
        self.predictor = None
        if start is not None:
            self.predictor = start.predictor
            self(0, start.w)
        from core.kprior import Predictor

        self.predictor = Predictor(problem.new_spec)

    @property
    def done(self) -> bool:
        return 97 in self.reached

    def __call__(self, passes: int, w: Tensor) -> bool:
        if passes >= self._next and self.predictor is not None:
            self._next = passes + 500
            f = self.predictor.outputs(w, self.problem.test.x)
            correct = self.predictor.family.decide(f) == self.problem.test.y[:, 0].long()
            accuracy = 100 * float(correct.double().mean())
            for level in (90, 97):
                if accuracy >= level:
                    self.reached.setdefault(level, passes)
        return self.done
