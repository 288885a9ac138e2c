"""The certificate of a GLM whose Hessian fits: without a pass, by gradients alone, or by moving the anchor."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.dense import AnchoredModel, hessian_of
from core.kprior.certificate.anchored_bound import AnchoredBound, bound_from, hessian_blur
from core.kprior.certificate.bounds import prediction_bound
from core.kprior.certificate.certificate import Certificate, Measurement, check_count
from core.kprior.cost import Cost
from core.kprior.curvature import Full, cholesky
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import accumulate
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.gauge import fill_gauge, shift_directions, without_shift
from core.kprior.passes.accumulator import Combined
from core.kprior.passes.loss import Loss
from core.kprior.passes.measurement import measure
from core.kprior.passes.rounding_error import EPSILON, matrix_rounding
from core.kprior.passes.sampled_hessian import SampledHessian
from core.kprior.solvers import Training
from core.kprior.state import State

MAX_SPREAD = 0.7
SAMPLE_FRACTION, SAMPLE_ROWS_PER_WEIGHT = 0.1, 20
"""The fraction of rows whose curvature a step is computed from, and how many for each weight at least."""


def is_dense(state: State) -> bool:
    """Whether a state is a GLM that carries its whole curvature."""
    return state.predictor.linear and isinstance(state.curvature, Full)


def certify_anchored(state: State, memory: Examples, holdout: Data = ()) -> Certificate:
    """The certificate of a dense GLM without a pass: its relative bound is infinite where none can be given."""
    anchored = AnchoredModel.of(state, memory)
    return certificate_of(anchored, anchored.bound(state.w), state.w, 0, holdout)


def certificate_of(
    anchored: AnchoredModel, bound: AnchoredBound, w: Tensor, passes: int, holdout: Data = ()
) -> Certificate:
    """A dense GLM's bound in all the ways that people ask for it."""
    prediction = None
    if math.isfinite(bound.radius):
        prediction = prediction_bound(anchored.predictor, w, bound.step, bound.radius, bound.factor, holdout)
    size = float(w.norm())
    relative = bound.distance / size if size > 0 else (0.0 if bound.distance == 0 else math.inf)
    return Certificate("bound", bound.gradient_norm, passes, bound.distance, relative, prediction)


def certify_by_gradients(
    state: State, memory: Examples, data: Data, tolerance: float, rounds: int, holdout: Data
) -> Measurement:
    """Passes that gather the gradient alone, and steps by the anchor's Hessian, which stays where it is.

    For a model of many weights such a pass costs a small part of one that gathers curvature. It knows, too, how far the
    outputs have moved from the anchor: beyond MAX_SPREAD the anchor has little to say, and it is given up.
    """
    cost, predictor = Cost(), state.predictor
    with cost.timed():
        anchored = AnchoredModel.of(state, memory)
        regularizer, anchor, family = anchored.regularizer, anchored.anchor, predictor.family
        c = family.self_concordance
        w, certificate = state.w, Certificate("bound", math.inf, 0, math.inf, math.inf)
        # where examples at hand have moved further, so have others; and curvature that jumps needs more than a spread
        near = anchored.spread(w) <= MAX_SPREAD and not family.kinked
        while near and cost.data_passes < rounds:
            seen = accumulate(data, Loss(predictor, w, careful=True, origin=anchor.w))
            check_count(state, seen.count)
            cost.backward_passes += seen.count
            cost.data_passes += 1
            k = seen.gradient + regularizer.gradient(w)
            error = 4 * EPSILON * (seen.rounding + float(regularizer.magnitude(w).sum()))
            bound = bound_from(anchor, regularizer, family, anchored.factor, k, c * seen.spread, error=error)
            certificate = certificate_of(anchored, bound, w, cost.data_passes, holdout)
            if certificate.meets(tolerance) or not seen.spread <= MAX_SPREAD:
                break
            # after the step the gradient is what curvature changed on the way: no pass is needed to bound that
            size = float((anchored.factor.T @ bound.step).norm())
            spread = c * (seen.spread + math.sqrt(anchor.peak) * size)
            w = without_shift(w + bound.step, shift_directions(predictor, regularizer.delta))
            blur = hessian_blur(anchor, regularizer)
            if not (spread < 50 and blur < 0.5):
                break
            rest = math.expm1(spread - math.log1p(-blur)) * size
            scale = anchor.mass + float(regularizer.delta.sum())
            error = 2 * error + matrix_rounding(scale, predictor.size) * float(bound.step.norm())
            bound = bound_from(
                anchor, regularizer, predictor.family, anchored.factor, 0 * k, spread, rest=rest, error=error
            )
            certificate = certificate_of(anchored, bound, w, cost.data_passes, holdout)
            if certificate.meets(tolerance):
                break
    return Measurement(certificate, replace(state, w=w), memory, None, None, cost)


def approach(state: State, data: Data, rounds: int, seed: int) -> tuple[State, Cost]:
    """Newton steps from weights that were estimated, before anything is measured for good.

    The gradient is that of all rows, the Hessian that of a sample: such a pass costs a part of one that certifies.
    """
    cost, predictor, regularizer = Cost(), state.predictor, state.regularizer
    fraction = max(SAMPLE_FRACTION, SAMPLE_ROWS_PER_WEIGHT * predictor.size / state.count)
    shifts = shift_directions(predictor, regularizer.delta)
    w, before, value = state.w, state.w, math.inf
    with cost.timed():
        while fraction <= 0.5 and cost.data_passes < rounds:
            loss, sample = Loss(predictor, w), SampledHessian(predictor, w, fraction, seed)
            accumulate(data, Combined(loss, sample))
            check_count(state, loss.count)
            cost.backward_passes += loss.count
            cost.data_passes += 1
            new_value = loss.value + float(regularizer.value(w))
            if not new_value <= value:
                return replace(state, w=before), cost
            H = fill_gauge(sample.hessian + torch.diag(regularizer.delta), shifts)
            step = torch.cholesky_solve((loss.gradient + regularizer.gradient(w))[:, None], cholesky(H))[:, 0]
            w, before, value = without_shift(w - step, shifts), w, new_value
    return replace(state, w=w), cost


def certify_dense(
    state: State,
    memory: Examples,
    data: Data,
    holdout: Data,
    passes: int,
    cost: Cost,
    policy: MemoryPolicy | None,
    afresh: bool,
    seed: int,
) -> Measurement:
    """Move the anchor to the weights, and from there to the minimum of the anchored objective."""
    predictor, w = state.predictor, state.w
    known = is_dense(state) and not afresh
    near = hessian_of(predictor, state.regularizer, state.anchor) if known else None
    size = max(1, len(state.memory)) if policy is None else policy.size(state.count)
    measured = measure(
        predictor,
        state.regularizer,
        w,
        data,
        size,
        policy or MemoryPolicy(),
        "full",
        cost,
        seed=seed,
        generation=state.memory.generation,
        near=near,
    )
    check_count(state, measured.count)
    value = measured.value + float(state.regularizer.value(w))
    unknown = Certificate("bound", math.inf, passes, math.inf, math.inf)
    if not measured.anchor.finite or not math.isfinite(value):
        # counts overflow where a model is far off: half the weights, as often as it takes, are finite again
        return Measurement(unknown, state, memory, replace(state, w=w / 2), unknown, cost, math.inf)
    surrogate = None if state.surrogate is None else measured.surrogate
    exact = replace(state, anchor=measured.anchor, memory=measured.memory, surrogate=surrogate)
    if measured.anchor.smallest == 0:
        certificate = replace(unknown, gradient_norm=float(exact.gradient.norm()))
        return Measurement(certificate, exact, measured.rows, None, None, cost, value)
    anchored = AnchoredModel.of(exact, measured.rows)
    bound = anchored.bound(w)
    certificate = certificate_of(anchored, bound, w, passes, holdout)
    try:
        there = anchored.solve(w, Training(), Cost())
    except ArithmeticError:
        there = w + 0.01 * bound.step  # a direction of descent: the next pass will tell
    refined = certificate_of(anchored, anchored.bound(there), there, passes, holdout)
    return Measurement(certificate, exact, measured.rows, replace(exact, w=there), refined, cost, value)
