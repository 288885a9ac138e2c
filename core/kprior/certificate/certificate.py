"""The certificate: how far a model can be from the retrain that nobody ran. One pass over the retained data.

The bound of a GLM is in `bounds.py`. For networks nothing of it holds: the residual is measured, and no more is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.adaptation import adapt
from core.kprior.certificate.bounds import Bounds, bounds, prediction_bound
from core.kprior.cost import Cost
from core.kprior.curvature import FULL_LIMIT, Curvature, Full, LowRank, cholesky
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import accumulate
from core.kprior.memory.memory import MemoryPolicy, remember
from core.kprior.model.families import Categorical
from core.kprior.model.gauge import ground, shift_directions, without_shift
from core.kprior.objective.surrogate import Surrogate
from core.kprior.passes.statistics import Statistics
from core.kprior.state import State, aligned

EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Certificate:
    """What one pass over the retained data says of a model."""

    kind: str
    """"bound" for GLMs, "measured" for networks."""
    gradient_norm: float
    """|grad F(w)| of the retained objective at the model's weights."""
    passes: int
    bound: float | None = None
    """Covers |w - w_retrain|; infinite if the model is too far off to tell. None for networks."""
    relative: float | None = None
    """bound / |w|, or for networks |grad F| / (1 + |delta w|)."""
    prediction_bound: float | None = None
    """Covers the change of any mean prediction on the examples that were given to look at."""


@dataclass(frozen=True)
class Measurement:
    """A certificate, the state with exact g* and G that the pass found, and the step it suggests."""

    certificate: Certificate
    state: State
    refined: State | None
    """The state after the Newton step, with its own certificate below; None where no step is known."""
    refined_certificate: Certificate | None
    cost: Cost
    value: float = math.nan
    """F(w), the retained objective (GLMs)."""


def certify(state: State, memory: Examples, data: Data, *, look_at: Data = (), passes: int = 1) -> Measurement:
    """One pass over the retained `data`; `look_at` are examples (the holdout) whose predictions are bounded, too.

    `memory` holds the rows that the state's memory refers to: their soft labels move with the weights.
    """
    cost = Cost()
    with cost.timed():
        if not state.predictor.linear:
            result = measure_network(state, data, passes, cost)
        elif state.predictor.size <= FULL_LIMIT:
            result = certify_dense(state, memory, data, look_at, passes, cost)
        else:
            result = certify_large(state, data, passes, cost)
    return replace(result, cost=cost)


def look_at_all(
    state: State,
    data: Data,
    cost: Cost,
    curvature: str | None = None,
    careful: bool = False,
    inverse: Tensor | None = None,
) -> Statistics:
    """One pass over the retained rows, checked against what the state stands for: over others it would be no bound."""
    asked = Statistics(
        state.predictor,
        state.w,
        slope=True,
        curvature=curvature,
        surrogate=state.surrogate is not None,
        careful=careful,
        inverse=inverse,
    )
    look = accumulate(data, asked)
    if look.count != state.count:
        raise ValueError(f"the state stands for {state.count} examples, but {look.count} were given to certify it")
    cost.backward_passes += look.count
    cost.data_passes += 1
    return look


def refine(
    state: State, memory: Examples, data: Data, *, tolerance: float, rounds: int = 3, look_at: Data = ()
) -> Measurement:
    """Certify, and while the relative bound is above the tolerance take Newton steps: one pass each, `rounds` at most.

    For large GLMs, where no Newton step is known, `adapt(measured.state, memory, [])` is the next refinement: the
    measured gradient stands in K as a linear term.
    """
    cost, best = Cost(), None
    for passes in range(1, rounds + 1):
        measured = certify(state, memory, data, look_at=look_at, passes=passes)
        cost = cost + measured.cost
        if best is not None and not measured.value <= best.value + 1e-9 * abs(best.value):
            # the step went too far: most of the way back
            state = step_to(best.state, memory, best.state.w + (state.w - best.state.w) / 8, best.state.gradient)
            continue
        best = measured
        refined, there = measured.refined, measured.refined_certificate
        if within(measured.certificate, tolerance) or refined is None or there is None:
            return replace(measured, cost=cost)
        if within(there, tolerance) or passes == rounds:
            return Measurement(there, refined, None, None, cost)
        state = refined
    if best is None:
        raise ValueError("rounds must be at least 1")
    return replace(best, cost=cost)


def within(certificate: Certificate, tolerance: float) -> bool:
    """Whether a certificate meets a tolerance of the relative bound."""
    return certificate.relative is not None and certificate.relative <= tolerance


def certify_dense(state: State, memory: Examples, data: Data, look_at: Data, passes: int, cost: Cost) -> Measurement:
    """The tight bound, for GLMs whose Hessian fits."""
    predictor, w, delta = state.predictor, state.w, state.regularizer.delta
    family, K = predictor.family, predictor.family.outputs
    shifts = shift_directions(predictor, delta)
    eye = torch.eye(predictor.size, dtype=w.dtype, device=w.device)
    before = state.curvature.matrix if isinstance(state.curvature, Full) else torch.zeros_like(eye)
    known = ground(before + torch.diag(delta), shifts)
    # r must be known in the norm of H, which the pass itself finds out: measure in a norm known before, then convert
    root = torch.linalg.solve_triangular(cholesky(known), eye, upper=False)
    inverse = (root.T @ root).view(K, predictor.size // K, K, predictor.size // K)

    look = look_at_all(state, data, cost, "full", careful=True, inverse=inverse)
    assert isinstance(look.curvature, Full)
    gradient, curvature = state.regularizer.gradient(w) + look.gradient, look.curvature
    reach, rounding = look.spread, look.rounding + float((delta * w).abs().sum())
    value = float(state.regularizer.value(w)) + look.value

    H = ground(curvature.matrix + torch.diag(delta), shifts)
    if not bool(H.isfinite().all()) or not math.isfinite(value):
        # counts overflow where a model is far off: half the weights, as often as it takes, are finite again
        unknown = Certificate("bound", math.inf, passes, math.inf, math.inf)
        halved = step_to(state, memory, w / 2, state.gradient)
        return Measurement(unknown, state, halved, unknown, cost, math.inf)
    spectrum = torch.linalg.eigvalsh(H)
    smallest, condition = float(spectrum[0]), float(spectrum[-1] / spectrum[0])
    error = 4 * EPSILON * rounding
    if smallest <= EPSILON * float(H.diagonal().sum()):
        flat = Bounds(math.inf, math.inf, math.inf)
        certificate = finish(state, gradient, flat, None, math.inf, look_at, None, None, passes, error)
        return Measurement(
            certificate, measured_state(state, gradient, curvature, look.surrogate), None, None, cost, value
        )
    factor = cholesky(H)
    # |phi| in H^-1 <= |phi| in known^-1 / sqrt(a), a the smallest eigenvalue of H relative to `known`
    share = float(torch.linalg.eigvalsh(root @ H @ root.T)[0])
    reach = math.sqrt(reach / share) if share > 0 else math.inf
    newton = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    decrement = math.sqrt(max(0.0, float(-(gradient @ newton)))) + error / math.sqrt(smallest)
    figures = bounds(decrement, reach, smallest, family.self_concordance)

    # what rounding in H does to the step
    error += EPSILON * condition * float(newton.norm()) * smallest
    exact = measured_state(state, gradient, curvature, look.surrogate)
    certificate = finish(state, gradient, figures, newton, smallest, look_at, factor, newton, passes, error)
    if not math.isfinite(figures.radius):
        # too far for the bound and so for a plain Newton step: K around the measured gradient and curvature knows, from
        # the memory, how the outputs bend; the next pass will tell
        unknown = replace(certificate, bound=math.inf, relative=math.inf, prediction_bound=None)
        try:
            next_ = adapt(exact, memory, [], policy=MemoryPolicy(1.0, cap=max(1, len(exact.memory)))).state
        except ArithmeticError:
            d = family.self_concordance * reach * decrement
            damping = math.log1p(d) / d if math.isfinite(d) else 0.01
            next_ = step_to(exact, memory, w + damping * newton, (1 - damping) * gradient)
        return Measurement(certificate, exact, next_, unknown, cost, value)
    stepped = step_to(exact, memory, without_shift(w + newton, shifts), torch.zeros_like(gradient))
    left = figures.left * math.sqrt(float(spectrum[-1])) + error
    there = finish(stepped, gradient * 0, figures, torch.zeros_like(w), smallest, look_at, factor, None, passes, error)
    there = replace(there, gradient_norm=left)
    return Measurement(certificate, exact, stepped, there, cost, value)


def finish(
    state: State,
    gradient: Tensor,
    figures: Bounds,
    newton: Tensor | None,
    smallest: float,
    look_at: Data,
    factor: Tensor | None,
    shift: Tensor | None,
    passes: int,
    error: float,
) -> Certificate:
    """The certificate at the state's weights, given the Newton step from there (zero after it was taken)."""
    delta, norm = state.regularizer.delta, float(gradient.norm())
    bound = math.inf
    if newton is not None and math.isfinite(figures.radius):
        slack = (figures.radius + error / math.sqrt(smallest)) / math.sqrt(smallest)
        bound = min(figures.distance, float(newton.norm()) + slack)
    if bool((delta > 0).all()) and shift is not None:
        bound = min(bound, (norm + error) / float(delta.min()))
    prediction = None
    if factor is not None and math.isfinite(figures.radius):
        step = torch.zeros_like(state.w) if shift is None else shift
        slack = figures.radius + error / math.sqrt(smallest)
        prediction = prediction_bound(state.predictor, state.w, step, slack, factor, look_at)
    size = float(state.w.norm())
    relative = bound / size if size > 0 else (0.0 if bound == 0 else math.inf)
    return Certificate("bound", norm, passes, bound, relative, prediction)


def certify_large(state: State, data: Data, passes: int, cost: Cost) -> Measurement:
    """For GLMs without a dense Hessian: the same bound in the norm of a part of H that is never more than H.

    H0 = delta_min on the penalised weights + a truncated decomposition of the data's curvature.
    """
    predictor, w, delta = state.predictor, state.w, state.regularizer.delta
    look = look_at_all(state, data, cost, "lowrank", careful=True)
    gradient, curvature = state.regularizer.gradient(w) + look.gradient, look.curvature
    assert isinstance(curvature, LowRank)
    error = 4 * EPSILON * (look.rounding + float((delta * w).abs().sum()))
    free = torch.nonzero(delta == 0)[:, 0]
    ridge = float(delta[delta > 0].min()) if len(free) < len(delta) else 0.0
    # a basis of all directions in which H0 is more than the ridge, or less: everything else is ridge alone
    units = torch.zeros(len(free), predictor.size, dtype=w.dtype, device=w.device)
    units[torch.arange(len(free), device=w.device), free] = 1
    shifts = shift_directions(predictor, delta)
    basis = torch.linalg.qr(torch.cat([curvature.factor, units]).T)[0]
    small = curvature.factor @ basis
    inner = small.T @ small + ridge * (basis.T * (delta > 0)) @ basis
    if shifts is not None:
        flat = basis.T @ shifts
        inner = inner + inner.diagonal().mean() * flat @ flat.T
    inner = (inner + inner.T) / 2
    smallest = min(float(torch.linalg.eigvalsh(inner)[0]) if len(inner) else ridge, ridge)
    figures = Bounds(math.inf, math.inf, math.inf)
    if smallest > EPSILON * max(float(inner.diagonal().sum()), ridge):
        inside = basis.T @ gradient
        outside = float((gradient - basis @ inside).norm()) ** 2
        within = float(inside @ torch.linalg.solve(inner, inside))
        decrement = math.sqrt(within + outside / ridge) + error / math.sqrt(smallest)
        pairs = 2.0 if isinstance(predictor.family, Categorical) else 1.0
        reach = math.sqrt(pairs * look.spread / smallest)
        figures = bounds(decrement, reach, smallest, predictor.family.self_concordance)
    norm = float(gradient.norm())
    bound = figures.distance
    if len(free) == 0:
        bound = min(bound, (norm + error) / ridge)
    size = float(w.norm())
    certificate = Certificate("bound", norm, passes, bound, bound / size if size else math.inf)
    kept = curvature if state.curvature is not None and state.curvature.kind == "lowrank" else state.curvature
    exact = measured_state(state, gradient, kept, look.surrogate)
    return Measurement(certificate, exact, None, None, cost)


def measure_network(state: State, data: Data, passes: int, cost: Cost) -> Measurement:
    """The residual of the retained objective: no bound follows from it, but zero would mean a stationary point.

    The state does not take it over: as a linear term of the next adaptation it would pull without end, since nothing
    but a small penalty holds a network's weights.
    """
    gradient = state.regularizer.gradient(state.w)
    scale = 1 + float(gradient.norm())
    look = look_at_all(state, data, cost)
    gradient = gradient + look.gradient
    norm = float(gradient.norm())
    certificate = Certificate("measured", norm, passes, relative=norm / scale)
    measured = measured_state(state, state.gradient, state.curvature, look.surrogate)
    return Measurement(certificate, measured, None, None, cost)


def measured_state(state: State, gradient: Tensor, curvature: Curvature | None, surrogate: Surrogate | None) -> State:
    """The state with what the pass measured in place of what was carried along.

    Of an example that was added at other weights than those it was taken away at, what was carried along keeps a
    remainder; what was measured does not know it.
    """
    return replace(state, gradient=gradient, curvature=curvature, surrogate=surrogate)


def step_to(state: State, memory: Examples, w: Tensor, gradient: Tensor) -> State:
    """The state moved to w, where the gradient is `gradient` to first order."""
    old = state.memory
    fresh = remember(state.predictor, w, aligned(state, memory), old.weight, old.generation)
    return replace(state, w=w, gradient=gradient, memory=fresh)
