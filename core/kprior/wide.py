"""Wide GLMs: softmax heads over embeddings, P from a thousand to millions.

The state's anchor is where the last careful pass measured the gradient; its curvature is an estimate that
preconditions and decides nothing. An adaptation changes the gradient by the examples that came and went, which is
exact, and takes one step; the passes that certify it go on from there. Training is the same descent from zero, by way
of growing samples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.cost import Cost
from core.kprior.curvature import Blocks, Curvature, Diagonal, Kronecker, kind_for
from core.kprior.data.encoded import EncodedData
from core.kprior.data.examples import Data, EncodedExamples, Examples, chunks_of, rereadable
from core.kprior.memory.memory import Memory, MemoryPolicy, remember
from core.kprior.memory.sampling import uniform
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.surrogate import change_surrogate, move_surrogate
from core.kprior.objective.tasks import Change
from core.kprior.objective.transfer import new_regularizer
from core.kprior.objective.wide import WideObjective, WideSolution, descent_reporter
from core.kprior.passes.gradient import Gradient
from core.kprior.solvers import Progress, SolverError, Training
from core.kprior.state import State, align, check_keys

FIRST_ROWS = 4_000
"""Rows of the first sample of a training, at least."""
GROWTH = 4
SAMPLE_ROWS, SAMPLE_NUMBERS = 20_000, 2**25
"""Rows, and numbers of their features, at most, that curvature is estimated from."""
FURTHEST = 4.0
"""How far outputs may move in a step that no pass checks."""
STAGE = 20
"""Passes after which a refinement that has not come near enough estimates curvature anew."""
LOOSE = 2.0
"""How many times the sample's own uncertainty its optimum may be off."""


def train_wide(
    predictor: Predictor,
    regularizer: L2,
    data: EncodedData,
    training: Training,
    cost: Cost,
    tolerance: float,
    progress: Progress | None = None,
) -> tuple[WideSolution, Curvature]:
    """From zero: optima of growing samples, each the start of the next, then all rows; and a preconditioner."""
    if not bool((regularizer.delta > 0).any()):
        raise SolverError("a wide model needs a penalty: nothing else holds its weights")
    D = predictor.size // predictor.family.outputs
    w = torch.zeros(predictor.size, dtype=predictor.dtype, device=predictor.device)
    count, size = count_rows(data), max(FIRST_ROWS, 2 * D)
    if count == 0:
        raise ValueError("there is nothing to train on: no examples")
    report = None if progress is None else descent_reporter(progress)
    while size * 1.5 < count:
        some = sample_encoded(data, size / count, training.seed)
        sampled = WideObjective(predictor, regularizer, EncodedData(predictor, some), cost)
        sampled.scale = count / max(1, sum(len(chunk) for chunk in some))
        loose = LOOSE * tolerance * math.sqrt(count / size)
        for most in (20, 60) if not bool(w.any()) else (60,):  # the curvature at zero is soon out of date
            inverse = estimate_curvature(predictor, w, some, count, training.seed).inverse(regularizer.delta)
            w = sampled.minimise(w, inverse, loose, certified=False, most=most).w
        size *= GROWTH
    objective = WideObjective(predictor, regularizer, data, cost)
    some = sample_encoded(data, sample_fraction(predictor, count), training.seed)
    if not bool(w.any()):  # few rows: the same in two goes
        inverse = estimate_curvature(predictor, w, some, count, training.seed).inverse(regularizer.delta)
        w = objective.minimise(w, inverse, 10 * tolerance, certified=False, most=20, report=report).w
    curvature = estimate_curvature(predictor, w, some, count, training.seed)
    descent = objective.minimise(w, curvature.inverse(regularizer.delta), tolerance, report=report)
    measured = objective.measure(descent)
    if not math.isfinite(measured.seen.value):
        raise SolverError("the objective is not finite: check the examples for extreme values")
    return measured, curvature


def count_rows(data: EncodedData) -> int:
    """How many rows there are; they are encoded and kept on the way."""
    data.shards()
    return data.count or sum(len(chunk) for chunk in data.encoded_chunks())


def sample_fraction(predictor: Predictor, count: int) -> float:
    """Which fraction of the rows curvature is estimated from."""
    D = predictor.size // predictor.family.outputs
    return max(16, min(SAMPLE_ROWS, SAMPLE_NUMBERS // D)) / max(1, count)


def sample_encoded(data: EncodedData, fraction: float, seed: int) -> list[EncodedExamples]:
    """A random fraction of the rows as features, the same whoever asks."""
    chosen = []
    for chunk in data.encoded_chunks():
        here = torch.nonzero(uniform(chunk.key, seed) <= fraction)[:, 0]
        if len(here):
            chosen.append(EncodedExamples(chunk.key[here], chunk.x[here], chunk.y[here]))
    return chosen or list(islice(data.encoded_chunks(), 1))


def estimate_curvature(
    predictor: Predictor, w: Tensor, sample: list[EncodedExamples], count: int, seed: int
) -> Curvature:
    """A preconditioner for `count` rows from a sample of them."""
    kind = kind_for(predictor)
    rows = Examples(*(torch.cat([getattr(chunk, name) for chunk in sample]) for name in ("key", "x", "y")))
    D = predictor.size // predictor.family.outputs
    if kind in ("full", "blocks"):
        generator = torch.Generator().manual_seed(seed)
        return Blocks.estimate(predictor, w, rows, count, max(1_000, 2 * D), generator)
    curvature = Kronecker.zeros(predictor) if kind == "kronecker" else Diagonal.zeros(predictor)
    few = rows.take(torch.arange(min(len(rows), max(2_000, 2 * D) if kind == "kronecker" else 2_000)))
    curvature.add_features(predictor, w, few.x.to(predictor.dtype), count / max(1, len(few)))
    return curvature


def adapt_wide(
    state: State, memory: Examples, change: Change, policy: MemoryPolicy, training: Training, cost: Cost
) -> tuple[State, Examples]:
    """Change the anchor's gradient by what came and went, and take one step from there."""
    predictor, anchor = state.predictor, state.anchor
    regularizer = new_regularizer(state, change, predictor)
    curvature = None if anchor.curvature is None else anchor.curvature.copy(predictor)
    gradient, rounding = anchor.gradient.clone(), anchor.rounding
    none = torch.zeros(0, dtype=torch.long)
    keys = {-1.0: [none], 1.0: [none]}
    for sign, moved in ((-1.0, change.removed), (1.0, change.added)):
        for chunk in (c for data in moved for c in rereadable(data) if len(c)):
            terms = Gradient(predictor, anchor.w, careful=True)
            terms.add(chunk)
            gradient += sign * terms.gradient.reshape(-1)
            rounding += terms.rounding
            cost.backward_passes += len(chunk)
            keys[sign].append(chunk.key.cpu())
            if isinstance(curvature, Blocks):
                phi = predictor.features(chunk.x)
                curvature.forget(chunk.key, phi) if sign < 0 else curvature.learn(predictor, anchor.w, chunk.key, phi)
    removed_keys, added_keys = torch.cat(keys[-1.0]), torch.cat(keys[1.0])
    check_keys(state, removed_keys, added_keys)
    count = state.count - len(removed_keys) + len(added_keys)
    if count <= 0:
        raise ValueError("no examples are left: there is nothing a model could stand for")
    kept, rows = renew_sample(state, memory, removed_keys, change, policy, training, count)
    if curvature is not None and not isinstance(curvature, Blocks):
        # its factors hold sums over examples that may be gone: those that are remembered make them anew
        assert isinstance(curvature, Kronecker | Diagonal)
        curvature = type(curvature).zeros(predictor)
        if len(rows):
            curvature.add_features(predictor, anchor.w, predictor.features(rows.x), count / len(rows))
    w = anchor.w
    if curvature is not None and anchor.exact:
        objective = WideObjective(predictor, regularizer, EncodedData(predictor, []), cost)
        step = objective.project(curvature.inverse(regularizer.delta)(gradient + regularizer.gradient(anchor.w)))
        w = anchor.w - step * step_length(predictor, step, [rows, *chunks_of(change.added)])
        if not bool(w.isfinite().all()):
            raise SolverError("the weights are not finite any more: check the examples for extreme values")
    moved_anchor = Anchor(anchor.w, gradient, curvature, anchor.exact, rounding=rounding)
    spec = change.regularizer or state.regularizer_spec
    removed, added = chunks_of(change.removed), chunks_of(change.added)
    surrogate = change_surrogate(state.surrogate, predictor, anchor.w, removed, added)
    return State(predictor, regularizer, spec, w, moved_anchor, kept, count, surrogate), rows


def step_length(predictor: Predictor, step: Tensor, at_hand: list[Examples]) -> float:
    """Which fraction of a step to take: none of the outputs at hand should move so far that curvature means nothing."""
    K, widest = predictor.family.outputs, 0.0
    for chunk in (c for c in at_hand if len(c)):
        change = predictor.features(chunk.x) @ step.view(K, -1).T
        widest = max(widest, predictor.family.self_concordance * float(predictor.family.spread(change).max()))
    return min(1.0, FURTHEST / widest) if widest > 0 else 1.0


def renew_sample(
    state: State,
    memory: Examples,
    removed_keys: Tensor,
    change: Change,
    policy: MemoryPolicy,
    training: Training,
    count: int,
) -> tuple[Memory, Examples]:
    """The memory after the change: removed examples leave it, added ones are drawn as the others were."""
    predictor = state.predictor
    stays = ~torch.isin(state.memory.key, removed_keys)
    rows, weight = align(state, memory).take(stays), state.memory.weight.cpu()[stays]
    selection = MemorySelection(policy, policy.size(count), predictor, state.anchor.w, None, training.seed)
    if len(rows):
        selection.offer(rows, weight)
    for chunk in chunks_of(change.added):
        selection.offer(chunk)
    generation = state.memory.generation + 1
    if len(rows) or any(True for _ in chunks_of(change.added)):
        return selection.take(generation)
    return remember(predictor, state.anchor.w, rows, weight, generation), rows


def refine_wide(
    state: State,
    memory: Examples,
    data: Data,
    tolerance: float,
    rounds: int,
    cost: Cost,
    progress: Progress | None = None,
) -> tuple[State, WideSolution]:
    """Descend from the anchor, whose gradient is known, to within the tolerance; the anchor moves along."""
    predictor, regularizer, anchor = state.predictor, state.regularizer, state.anchor
    encoded = EncodedData(predictor, data)
    objective = WideObjective(predictor, regularizer, encoded, cost)
    objective.count = state.count
    curvature = anchor.curvature
    stale = isinstance(curvature, Blocks) and not curvature.stands_for(state.count)
    if curvature is None or stale:
        some = sample_encoded(encoded, sample_fraction(predictor, state.count), 0)
        curvature = estimate_curvature(predictor, state.w, some, state.count, 0)
    start = anchor.gradient + regularizer.gradient(anchor.w) if anchor.exact else None
    w = anchor.w if anchor.exact else state.w
    report = None if progress is None else descent_reporter(progress)
    first = min(rounds, STAGE)
    inverse = curvature.inverse(regularizer.delta)
    descent = objective.minimise(w, inverse, tolerance, start=start, most=first, report=report)
    while not descent.stopped and descent.passes < rounds:
        # slow going: the curvature of here, in place of that of where it began
        some = sample_encoded(encoded, sample_fraction(predictor, state.count), 0)
        curvature = estimate_curvature(predictor, descent.w, some, state.count, 0)
        inverse, left = curvature.inverse(regularizer.delta), rounds - descent.passes
        known = descent.evaluation.gradient if descent.evaluation.careful else None
        more = objective.minimise(descent.w, inverse, tolerance, start=known, most=min(left, STAGE), report=report)
        stuck = torch.equal(more.w, descent.w)
        descent = replace(more, passes=descent.passes + more.passes)
        if stuck:
            break
    measured = objective.measure(descent)
    gradient = measured.seen.gradient.reshape(-1)
    moved = Anchor(measured.w, gradient, curvature, exact=True, rounding=measured.seen.rounding)
    rows = align(state, memory)
    old = state.memory
    fresh = remember(predictor, measured.w, rows, old.weight, old.generation)
    surrogate = move_surrogate(state.surrogate, predictor, anchor.w, measured.w, rows, old.weight)
    return replace(state, w=measured.w, anchor=moved, memory=fresh, surrogate=surrogate), measured
