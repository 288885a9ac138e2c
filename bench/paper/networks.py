"""The paper's tasks with networks: USPS, odd or even; MNIST, ten digits; CIFAR-10, or digits in its shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from torch import Tensor

from bench.engine.descents import RATES, warm_descent
from bench.paper.methods import (
    TEMPERATURE,
    TOP,
    Figure,
    Memory,
    Passes,
    Reporter,
    adapt_chosen,
    choose,
    replace_seed,
    run_method,
    timed,
)
from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import OURS, PAPER, REPLAY, WEIGHT_PRIOR, Method
from bench.paper.rivals import L2_PRIOR, fromp, gem
from bench.problems import FEWER_FRACTIONS, FRACTIONS, Problem
from bench.reselection import reselect
from core.kprior import (
    Cost,
    Examples,
    MemoryPolicy,
    Predictor,
    Result,
    Select,
    State,
    Training,
    adapt,
    train,
)
from core.kprior.curvature.diagonal import Diagonal
from core.kprior.data.random_samples import draw_from
from core.kprior.memory.memory import MemoryChoice
from core.kprior.model.spec import Spec
from core.kprior.solvers.budgeted_adam import warm_visits
from core.kprior.state.measurement import measure
from core.kprior.training.training import Execution, Predecessor

PAPERS = {
    "usps-mlp": Training(learning_rate=0.005, batch_size=None, max_epochs=1000, patience=None),
    "mnist-mlp": Training(learning_rate=0.001, batch_size=512, max_epochs=250, patience=None),
    "cifar-cifarnet": Training(learning_rate=0.001, batch_size=128, max_epochs=100, patience=None),
    "digits-cifarnet": Training(learning_rate=0.001, batch_size=128, max_epochs=20, patience=None),
}
"""The paper's training: Adam, with full batches or minibatches, and its number of epochs (fewer for digits)."""


MEMORIES = {"usps-mlp": FRACTIONS, "cifar-cifarnet": (0.5, 0.1, 0.02)}
"""Memory sizes, where they are not FEWER_FRACTIONS."""
RIVALS = 0.1
"""The largest fraction of the past with which FROMP and GEM are run; FROMP inverts its matrix, and GEM solves
repeatedly.
"""


def compare_network(problem: Problem, seed: int, epochs: int | None = None) -> Iterator[Figure]:
    """Networks: base, batch and memory all depend on the seed.

    With `epochs`, retrains are shorter than in the paper. Methods that train on a memory take as many gradients as the
    retrain, but no more epochs than in the paper, so that a small memory does not mean an untrained network. Mixed
    inputs stand for all rows, whatever the memory.
    """
    chunks, papers = problem.base.chunks(4096), PAPERS[problem.name]
    slow = replace(papers, max_epochs=epochs or papers.max_epochs)
    fast = replace(Training(), max_epochs=epochs or Training.max_epochs)
    trained = retrain(Whole(problem.spec, problem.base), replace_seed(slow, seed))
    base = trained.state
    batch = retrain(Whole(problem.new_spec, problem.retained), replace_seed(slow, seed + 1000))
    say = Reporter(problem, batch)
    yield say("batch", 1.0, seed, batch)
    yield say("nothing", 1.0, seed, replace(trained, cost=Cost()))
    ours = retrain(Whole(problem.new_spec, problem.retained), replace_seed(fast, seed + 1000))
    yield say("batch, our solver", 1.0, seed, ours)
    visits = min(warm_visits(len(problem.retained)), slow.max_epochs * len(problem.retained))
    yield say("warm refit", 1.0, seed, warm_refit(problem, base, batch, visits, seed))
    yield say("ours, real rows", 0.02, seed, drawn(problem, trained, seed))
    # another architecture has no weights in common to have a prior on
    if problem.task != "model" and problem.name == "usps-mlp":
        yield say("weight prior", 0.0, seed, weight_prior(base, problem, seed))
    if problem.task == "add":
        l2 = run_method(base, problem, chunks, Memory(0.02, Select.RANDOM), L2_PRIOR, seed, slow)
        yield say("weight prior, L2", 0.0, seed, l2)
    for fraction in MEMORIES.get(problem.name, FEWER_FRACTIONS):
        if epochs is not None:
            rows = fraction * len(problem.past) + len(problem.retained) - len(problem.past)
            slow = replace(slow, max_epochs=min(papers.max_epochs, round(epochs * len(problem.retained) / rows)))
        auto = Memory(fraction, Select.AUTO)
        yield say("ours", fraction, seed, run_method(base, problem, chunks, auto, OURS, seed, fast))
        past, top = problem.past.chunks(4096), Memory(fraction, TOP, True)
        highest = choose(base, past, top, seed)
        for name, method in (("paper", PAPER), ("paper, T = 5", TEMPERATURE)):
            yield say(name, fraction, seed, adapt_chosen(highest, problem, top, method, seed, slow))
        if problem.name == "usps-mlp" and problem.task == "add" and fraction <= RIVALS:
            chosen, G = highest.memory, diagonal(base, problem)
            ways = {"FROMP": partial(fromp, base, problem, chosen, G), "GEM-like": partial(gem, base, problem, chosen)}
            for name, way in ways.items():
                yield say(name, fraction, seed, timed(batch, way), memory=len(chosen))
        if fraction < 1:
            yield say("replay", fraction, seed, adapt_chosen(highest, problem, top, REPLAY, seed, slow))


class Whole:
    """A spec and all its rows, as a key of the cache: tasks share base models and retrains."""

    def __init__(self, spec: Spec, rows: Examples) -> None:
        self.spec, self.rows = spec, rows
        self.key = (json.dumps(spec, sort_keys=True), len(rows))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@cache
def retrain(whole: Whole, training: Training) -> Result:
    """Train from scratch, once for each problem."""
    return train(whole.spec, [whole.rows], training=training)


def warm_refit(problem: Problem, base: State, batch: Result, visits: int, seed: int) -> Result:
    """Descent from the old weights on all retained rows, with the learning rate that is best on the test rows."""
    test = problem.test
    tried = [warm_descent(base, problem.new_spec, [problem.retained], [visits], rate, seed) for rate in RATES]
    network, cpu, seen = min(tried, key=lambda item: int((item[0].decide(test.x) != problem.labels).sum()))
    cost = Cost(seen // len(problem.retained), seen, 0, cpu)
    return Result(replace(batch.state, w=network.w), batch.memory, cost, True)


def drawn(problem: Problem, trained: Result, seed: int) -> Result:
    """Amend's adaptation as in the service: rows drawn from the retained data, within a budget."""
    training = Training(seed=seed + 500)
    draw = draw_from(problem.past)
    return adapt(trained.state, trained.memory, problem.tasks, training=training, draw=draw)


def weight_prior(base: State, problem: Problem, seed: int) -> Result:
    """The quadratic of a network around w*, with Kronecker factors of the GGN, which take one pass."""
    policy = MemoryPolicy(0.02, select=Select.RANDOM)
    data = problem.base.chunks(512)
    choice = MemoryChoice(policy, policy.size(base.count))
    past = measure(base.predictor, base.regularizer, base.w, data, choice, "kronecker", Cost())
    state = replace(base, anchor=past.anchor, memory=past.memory)
    training = Training(seed=seed + 500)
    return adapt_by(WEIGHT_PRIOR, state, past.rows, problem.tasks, training=training, policy=policy)


def diagonal(base: State, problem: Problem) -> Diagonal:
    """The diagonal of the GGN of all past rows, which FROMP uses for networks."""
    G = Diagonal.zeros(base.predictor)
    for chunk in problem.past.chunks(512):
        G.add(base.predictor, base.w, chunk.x)
    return G


def count_passes(problem: Problem, seed: int) -> Iterator[Passes]:
    """Backward passes to 90 % and 97 % with a memory of 10 %."""
    base = retrain(Whole(problem.spec, problem.base), replace_seed(PAPERS[problem.name], seed)).state
    ours = Training(seed=seed + 1000)

    def batch(training: Training) -> Callable[[Stopwatch], object]:
        return lambda watch: train(
            problem.new_spec, [problem.retained], training=training, execution=Execution(watch=watch)
        )

    def adapted(
        select: Select, method: Method, training: Training, warm_start: bool = False
    ) -> Callable[[Stopwatch], object]:
        paper = select is TOP
        policy = MemoryPolicy(0.1, select=select, balance=paper)
        chosen = reselect(base, [problem.past if paper else problem.base], policy, seed)
        options = {"training": training, "warm_start": warm_start}
        return lambda watch: adapt_by(
            method,
            chosen.state,
            chosen.memory,
            problem.tasks,
            **options,  # type: ignore[arg-type]
            watch=watch,
            inputs=problem.base.chunks(4096),
        )

    slow = replace_seed(PAPERS[problem.name], seed + 1000)
    ways = {
        "batch": batch(slow),
        "batch, our solver": batch(ours),
        "warm refit": lambda watch: train(
            problem.new_spec,
            [problem.retained],
            predecessor=Predecessor(base, warm=True),
            execution=Execution(watch=watch),
        ),
        "paper": adapted(TOP, PAPER, slow),
        "ours, random start": adapted(Select.AUTO, OURS, ours),
        "ours": adapted(Select.AUTO, OURS, ours, warm_start=True),
    }
    for name, way in ways.items():
        warm = name in ("ours", "warm refit") and problem.task != "model"
        watch = Stopwatch(problem, base if warm else None)
        if not watch.done:
            way(watch)
        yield Passes(problem.task, seed, name, watch.reached.get(90), watch.reached.get(97))


class Stopwatch:
    """Records when the test accuracy first reaches the levels; checks at most every 500 backward passes."""

    def __init__(self, problem: Problem, start: State | None) -> None:
        self.problem, self.reached, self._next = problem, dict[int, int](), 0
        self.predictor = None
        if start is not None:
            self.predictor = start.predictor
            self(0, start.w)
        self.predictor = Predictor(problem.new_spec)

    @property
    def done(self) -> bool:
        return 97 in self.reached

    def __call__(self, passes: int, w: Tensor) -> bool:
        if passes >= self._next and self.predictor is not None:
            self._next = passes + 500
            f = self.predictor.outputs(w, self.problem.test.x)
            correct = self.predictor.family.decide(f) == self.problem.labels
            accuracy = 100 * float(correct.double().mean())
            for level in (90, 97):
                if accuracy >= level:
                    self.reached.setdefault(level, passes)
        return self.done
