"""The certificate of a GLM whose Hessian fits in memory: without a pass, by gradient passes, or by moving the
anchor."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.certificate.anchored_bound import AnchoredBound, GradientUncertainty, bound_from, hessian_blur
from core.kprior.certificate.anchored_model import AnchoredModel
from core.kprior.certificate.bounds import prediction_bound, prediction_bound_by_eigenvalue
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.labels import anchored_label_bounds
from core.kprior.certificate.result import Measurement, Reuse, check_count
from core.kprior.curvature import MAX_FULL_SIZE, Full, cholesky
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryChoice, MemoryPolicy
from core.kprior.model.gauge import fill_gauge, shift_directions, without_shift
from core.kprior.model.tree_leaves import Leaves
from core.kprior.passes.accumulator import Combined
from core.kprior.passes.cost import Cost
from core.kprior.passes.detail import has_affordable_detail
from core.kprior.passes.loss import Loss
from core.kprior.passes.partitioned import accumulate
from core.kprior.passes.rounding_error import EPSILON, matrix_rounding
from core.kprior.passes.sampled_hessian import SampledHessian
from core.kprior.solvers import Training
from core.kprior.state import State
from core.kprior.state.anchor import hessian_of
from core.kprior.state.measurement import DETAILED, measure

MAX_SPREAD = 0.7
SAMPLE_FRACTION, SAMPLE_ROWS_PER_WEIGHT = 0.1, 20
"""The fraction of rows that the Hessian of a step is computed from, and the minimum number of rows per weight."""


def is_dense(state: State) -> bool:
    """Whether a state is a GLM that carries its whole curvature."""
    return state.predictor.linear and isinstance(state.curvature, Full)


def certify_anchored(state: State, memory: Examples, holdout: Data = ()) -> Certificate:
    """The certificate of a dense GLM without a pass; its bound is infinite if there is none."""
    anchored = AnchoredModel.of(state, memory)
    return certificate_of(anchored, anchored.bound(state.w), state.w, 0, holdout)


def certificate_of(
    anchored: AnchoredModel, bound: AnchoredBound, w: Tensor, passes: int, holdout: Data = ()
) -> Certificate:
    """The certificate that follows from the bound of a dense GLM."""
    prediction = None
    if math.isfinite(bound.radius):
        where = (anchored.predictor, w, bound.step, bound.radius)
        if anchored.predictor.size > MAX_FULL_SIZE:
            delta = anchored.regularizer.delta
            smallest = min(anchored.anchor.smallest, float(delta[delta > 0].min()))
            prediction = prediction_bound_by_eigenvalue(*where, smallest, holdout)
        else:
            prediction = prediction_bound(*where, bound.factor, holdout)
    size = float(w.norm())
    relative = bound.distance / size if size > 0 else (0.0 if bound.distance == 0 else math.inf)
    labels = anchored_label_bounds(anchored, w, bound.distance)
    return Certificate("bound", bound.gradient_norm, passes, bound.distance, relative, prediction, labels=labels)


def certify_by_gradients(
    state: State, memory: Examples, data: Data, tolerance: float, rounds: int, holdout: Data
) -> Measurement:
    """Passes that measure the gradient alone, and steps by the Hessian of the anchor, which does not move.

    For a model with many weights, such a pass costs a small fraction of one that measures the curvature. It also
    measures how far the outputs have moved from the anchor: beyond MAX_SPREAD, the anchor's Hessian is of little use,
    and the function returns.
    """
    cost, predictor = Cost(), state.predictor
    with cost.timed():
        anchored = AnchoredModel.of(state, memory)
        regularizer, anchor, family = anchored.regularizer, anchored.anchor, predictor.family
        c = family.self_concordance
        w, certificate = state.w, Certificate("bound", math.inf, 0, math.inf, math.inf)
        # If examples at hand have moved further, so have others; and a curvature that jumps needs more than a spread.
        near = anchored.spread(w) <= MAX_SPREAD and not family.kinked
        while near and cost.data_passes < rounds:
            seen = accumulate(data, Loss(predictor, w, careful=True, origin=anchor.w))
            check_count(state, seen.count)
            cost.backward_passes += seen.count
            cost.data_passes += 1
            k = seen.gradient + regularizer.gradient(w)
            error = 4 * EPSILON * (seen.rounding + float(regularizer.magnitude(w).sum()))
            known = GradientUncertainty(error=error)
            bound = bound_from(anchor, regularizer, family, anchored.factor, k, c * seen.spread, known)
            certificate = certificate_of(anchored, bound, w, cost.data_passes, holdout)
            if certificate.meets(tolerance) or not seen.spread <= MAX_SPREAD:
                break
            # After the step, the gradient is the effect of the changing curvature, which is bounded without a pass.
            size = float((anchored.factor.T @ bound.step).norm())
            spread = c * (seen.spread + math.sqrt(anchor.peak) * size)
            w = without_shift(w + bound.step, shift_directions(predictor, regularizer.delta))
            blur = hessian_blur(anchor, regularizer)
            if not (spread < 50 and blur < 0.5):
                break
            rest = math.expm1(spread - math.log1p(-blur)) * size
            scale = anchor.mass + float(regularizer.delta.sum())
            error = 2 * error + matrix_rounding(scale, predictor.size) * float(bound.step.norm())
            known = GradientUncertainty(rest=rest, error=error)
            bound = bound_from(anchor, regularizer, family, anchored.factor, 0 * k, spread, known)
            certificate = certificate_of(anchored, bound, w, cost.data_passes, holdout)
            if certificate.meets(tolerance):
                break
    return Measurement(certificate, replace(state, w=w), memory, None, None, cost)


def approach(state: State, data: Data, rounds: int, seed: int) -> tuple[State, Cost]:
    """Newton steps from estimated weights, before the sums are measured exactly.

    The gradient is that of all rows, the Hessian that of a sample, so a pass costs a fraction of one that certifies.
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
    policy: MemoryPolicy | None,
    reuse: Reuse,
    seed: int,
) -> Measurement:
    """Move the anchor to the weights, and find the minimum of the anchored objective from there.

    If the sums of the state could be used (`Reuse.SUMS`) and did not suffice, the pass also measures the anchor's
    `detail`, so that they suffice next time.
    """
    predictor, w, cost = state.predictor, state.w, Cost()
    # the leverages of leaves cost less than comparing two Hessians of this size
    known = is_dense(state) and reuse is not Reuse.WEIGHTS and not isinstance(predictor.body, Leaves)
    near = hessian_of(predictor, state.regularizer, state.anchor) if known else None
    size = max(1, len(state.memory)) if policy is None else policy.size(state.count)
    choice = MemoryChoice(policy or MemoryPolicy(), size, seed, state.memory.generation)
    detailed = reuse is Reuse.SUMS and has_affordable_detail(predictor, state.count)
    kind = DETAILED if detailed else "full"
    measured = measure(predictor, state.regularizer, w, data, choice, kind, cost, near)
    check_count(state, measured.count)
    value = measured.value + float(state.regularizer.value(w))
    unknown = Certificate("bound", math.inf, passes, math.inf, math.inf)
    if not measured.anchor.finite or not math.isfinite(value):
        # Counts overflow if a model is far off; halving the weights repeatedly makes them finite again.
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
        there = w + 0.01 * bound.step  # a direction of descent, which the next pass checks
    refined = certificate_of(anchored, anchored.bound(there), there, passes, holdout)
    return Measurement(certificate, exact, measured.rows, replace(exact, w=there), refined, cost, value)
