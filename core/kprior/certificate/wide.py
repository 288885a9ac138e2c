"""The certificate of a wide GLM: passes for the gradient alone, from the anchor, until the bound is small enough."""

import math
from dataclasses import replace

import torch

from core.kprior.certificate.bounds import prediction_bound_by_length
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.labels import wide_label_bounds
from core.kprior.certificate.result import Measurement
from core.kprior.certificate.wide_objective import WideObjective, WideSolution
from core.kprior.curvature import Blocks, Curvature
from core.kprior.curvature.estimate import estimate_curvature, estimate_inverse, sample_fraction
from core.kprior.curvature.row_space import has_few_rows
from core.kprior.data.examples import Data, Examples
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.solvers.preconditioned_lbfgs import Descent, ValueAndGradient
from core.kprior.state import State, align, move_anchor
from core.kprior.state.anchor import Anchor

PASSES_PER_STAGE = 20
"""Passes after which a refinement that is not close enough estimates the curvature anew."""


def refine_wide(
    state: State,
    memory: Examples,
    data: Data,
    tolerance: float,
    rounds: int,
    cost: Cost,
) -> tuple[State, WideSolution]:
    """Descend from the anchor, whose gradient is known, to within the tolerance; the anchor moves to the result."""
    predictor, regularizer, anchor = state.predictor, state.regularizer, state.anchor
    encoded = EncodedData(predictor, data)
    objective = WideObjective(predictor, regularizer, encoded, cost)
    objective.count = state.count
    curvature, delta = anchor.curvature, regularizer.delta
    few = has_few_rows(predictor, state.count, delta)
    stale = isinstance(curvature, Blocks) and not curvature.stands_for(state.count)
    fraction = sample_fraction(predictor, state.count)
    if curvature is None or stale:
        curvature = estimate_curvature(predictor, state.w, encoded.sample(fraction, 0), state.count, 0)
    start = anchor.gradient + regularizer.gradient(anchor.w) if anchor.exact else None
    w = anchor.w if anchor.exact else state.w
    first = min(rounds, PASSES_PER_STAGE)
    if rounds == 0:
        return measured_state(state, memory, objective.measure(unmoved(state)), curvature)
    if few:
        inverse = estimate_inverse(predictor, w, encoded.sample(fraction, 0), state.count, 0, delta)
    else:
        inverse = curvature.inverse(delta)
    descent = objective.minimise(w, inverse, tolerance, start=start, max_passes=first)
    while not descent.stopped and descent.passes < rounds:
        # Progress is slow: use the curvature at the present weights instead of that at the start.
        some, left = encoded.sample(fraction, 0), rounds - descent.passes
        if few:
            inverse = estimate_inverse(predictor, descent.w, some, state.count, 0, delta)
        else:
            curvature = estimate_curvature(predictor, descent.w, some, state.count, 0)
            inverse = curvature.inverse(delta)
        known = descent.evaluation.gradient if descent.evaluation.careful else None
        more = objective.minimise(descent.w, inverse, tolerance, start=known, max_passes=min(left, PASSES_PER_STAGE))
        stuck = torch.equal(more.w, descent.w)
        descent = replace(more, passes=descent.passes + more.passes)
        if stuck:
            break
    return measured_state(state, memory, objective.measure(descent), curvature)


def unmoved(state: State) -> Descent:
    """A descent that ends where it begins, at the weights of the state."""
    return Descent(state.w, ValueAndGradient(math.inf, state.anchor.gradient), 0, True)


def measured_state(
    state: State, memory: Examples, measured: WideSolution, curvature: Curvature
) -> tuple[State, WideSolution]:
    """The state with its anchor at measured weights."""
    gradient, seen = measured.seen.gradient.reshape(-1), measured.seen
    moved = Anchor(measured.w, gradient, curvature, exact=True, rounding=seen.rounding, value=seen.value)
    return replace(move_anchor(state, moved, align(state, memory)), w=measured.w), measured


def certify_wide(
    state: State,
    memory: Examples,
    data: Data,
    holdout: Data,
    cost: Cost,
    *,
    tolerance: float = math.inf,
    rounds: int = 1,
) -> Measurement:
    """Passes for the gradient alone, until the bound is within the tolerance or the rounds are spent; with no round,
    one pass at the weights as they are."""
    moved, found = refine_wide(state, memory, data, tolerance, rounds, cost)
    prediction = prediction_bound_by_length(state.predictor, found.w, found.bound, holdout)
    relative = found.relative
    labels = wide_label_bounds(state.regularizer, found.seen, found.bound)
    certificate = Certificate(
        "bound", found.gradient_norm, found.passes, found.bound, relative, prediction, labels=labels
    )
    return Measurement(certificate, moved, memory, None, None, cost)
