"""The paper's tasks with GLMs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from bench.engine.data import Rows
from bench.engine.refits import Refitter, distance, first_tolerance
from bench.paper.limit import Pieces, directions_prior, optimal_prior
from bench.paper.methods import TEMPERATURE, TOP, Figure, Memory, Reporter, choose, run_method, timed
from bench.paper.objective.methods import OURS, PAPER, REPLAY, WEIGHT_PRIOR
from bench.paper.rivals import L2_PRIOR, fromp, gem
from bench.problems import FRACTIONS, Problem
from core.kprior import Cost, Result, Select, State, refine, train
from core.kprior.curvature import Full

REFIT = 0.01
"""The relative distance to the full retrain at which scikit-learn's refit stops."""


def compare_linear(problem: Problem, seeds: range | list[int]) -> Iterator[Figure]:
    """GLMs: the base is the same for all seeds, which only affect the memory."""
    chunks = problem.base.chunks(1024)
    base = train(problem.spec, chunks).state
    batch = train(problem.new_spec, problem.retained.chunks(1024))
    say = Reporter(problem, batch)
    yield say("batch", 1.0, seeds[0], batch)
    yield say(*refit(problem, base, batch, seeds[0]))
    for name, method in (("weight prior", WEIGHT_PRIOR), ("weight prior, L2", L2_PRIOR)):
        yield say(name, 0.0, seeds[0], run_method(base, problem, chunks, Memory(0.02, Select.RANDOM), method, 0))
    pieces = Pieces.of(base, problem)
    for fraction in FRACTIONS:
        for seed in seeds:
            if seed == seeds[0]:
                yield from compare_rivals(problem, base, pieces, fraction, seed, say)
                for name, method in (("paper", PAPER), ("paper, T = 5", TEMPERATURE), ("replay", REPLAY)):
                    # as in the reference: class-balanced top h' of the rows that stay
                    result = run_method(
                        base, problem, problem.past.chunks(1024), Memory(fraction, TOP, True), method, 0
                    )
                    yield say(name, fraction, seed, result)
            ours = run_method(base, problem, chunks, Memory(fraction, Select.AUTO), OURS, seed)
            yield say("ours", fraction, seed, ours)
            for rounds in (1, 2):
                data = problem.retained.chunks(1024)
                refined = refine(ours.state, ours.memory, data, tolerance=0.0, rounds=rounds)
                done = Result(refined.state, ours.memory, ours.cost + refined.cost, True)
                bound = refined.certificate.relative
                yield say(f"ours + {rounds} pass{'es' * (rounds > 1)}", fraction, seed, done, bound)


def compare_rivals(
    problem: Problem, base: State, pieces: Pieces, fraction: float, seed: int, say: Reporter
) -> Iterator[Figure]:
    """The optimal K-prior, which needs all past inputs, and rival methods with the paper's memory."""
    size = round(fraction * len(problem.past))
    ways = {"optimal": lambda: (optimal_prior(pieces, size, pieces.old), 0)}
    if problem.task != "model":
        ways["directions"] = lambda: (directions_prior(pieces, size, pieces.old), 0)
    if problem.task == "add":
        memory, G = choose(base, problem.past.chunks(1024), Memory(fraction, TOP, True), 0).memory, base.curvature
        assert isinstance(G, Full)
        ways["FROMP"] = lambda: fromp(base, problem, memory, G)
        ways["GEM-like"] = lambda: gem(base, problem, memory)
    for name, way in ways.items():
        yield say(name, fraction, seed, timed(say.batch, way), memory=size)


def refit(problem: Problem, base: State, batch: Result, seed: int) -> tuple[str, float, int, Result]:
    """scikit-learn from the old weights (if the degree is the same), to within 1 % of the full retrain."""
    rows = Rows(problem.retained.x.numpy(), problem.retained.y[:, 0].long().numpy(), 2)
    truth = batch.state.w.double().numpy()[None]
    start = base.w.double().numpy()[None] if base.w.shape == batch.state.w.shape else None
    delta = float(batch.state.regularizer.delta[0])
    tolerance = first_tolerance(rows, delta, float(np.linalg.norm(truth)), REFIT)
    found = Refitter(rows, delta, True).matched(start, REFIT, lambda w: distance(w, truth), tolerance)
    cost = Cost(found.iterations, found.iterations * len(rows), 0, found.cpu)
    state = replace(batch.state, w=torch.from_numpy(found.w[0]))
    return "cold refit" if start is None else "warm refit", 1.0, seed, Result(state, batch.memory, cost, True)
