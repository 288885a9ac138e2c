"""The certificate: how far a model can be from the retrain that nobody ran.

A GLM whose Hessian fits has one without a pass over the data (`anchored.py`); a pass over the retained data moves its
anchor, and gives a tighter one. Wide GLMs need a pass. For networks no bound exists: the residual is measured, and no
more is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from core.kprior.anchored import Anchored, hessian_of
from core.kprior.certificate.anchored import AnchoredBound, bound_from, hessian_blur
from core.kprior.certificate.bounds import prediction_bound, prediction_bound_by_length
from core.kprior.certificate.network import Audit
from core.kprior.cost import Cost
from core.kprior.curvature import Full, is_wide
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import accumulate
from core.kprior.measurement import measure
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.gauge import shift_directions, without_shift
from core.kprior.passes.rounding import EPSILON, matrix_rounding
from core.kprior.passes.statistics import Statistics
from core.kprior.solvers import Training
from core.kprior.state import State
from core.kprior.wide import refine_wide

GRADIENT_SIZE = 200
"""Weights from which on a pass for the gradient alone is tried first."""
SPREAD = 0.7
WIDE_PASSES = 60
"""Passes that a wide model's refinement may take: each costs a small part of one that gathers curvature."""


@dataclass(frozen=True)
class Certificate:
    """What is known of how far a model can be from a retrain on the same data.

    Examples
    --------
    >>> from core.kprior import Certificate
    >>> certificate = Certificate("bound", gradient_norm=1e-3, passes=1, bound=0.02, relative=0.005)
    >>> within(certificate, 0.01), within(certificate, 0.001)
    (True, False)
    """

    kind: str
    """"bound" for GLMs, "measured" for networks."""
    gradient_norm: float
    """Covers |grad F(w)| of the retained objective at the model's weights; not a number for networks."""
    passes: int
    """Over the retained data; 0 where none was made."""
    bound: float | None = None
    """Covers |w - w_retrain|; infinite if the model is too far off to tell. None for networks."""
    relative: float | None = None
    """bound / |w|. None for networks."""
    prediction_bound: float | None = None
    """Covers the change of any mean prediction on the examples that were given to look at."""
    audit: Audit | None = None
    """What was measured of a network."""


@dataclass(frozen=True)
class Measurement:
    """A certificate, the state with the sums that the pass found, and the step it suggests.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, certify, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> data = [Examples(torch.arange(6), x, 3 * x + 1)]
    >>> base = train(spec, data)
    >>> measurement = certify(base.state, base.memory, data)
    >>> round(measurement.value, 4), measurement.cost.data_passes  # the objective there, and what it took
    (4.2568, 1)
    """

    certificate: Certificate
    state: State
    memory: Examples
    """The rows that the state's memory refers to."""
    refined: State | None
    """The state after the step, with its own certificate below; None where no step is known."""
    refined_certificate: Certificate | None
    cost: Cost
    value: float = math.nan
    """F(w), the retained objective (GLMs)."""


def is_dense(state: State) -> bool:
    """Whether a state is a GLM that carries its whole curvature."""
    return state.predictor.linear and isinstance(state.curvature, Full)


def certify_anchored(state: State, memory: Examples, look_at: Data = ()) -> Certificate:
    """The certificate of a dense GLM without a pass: its relative bound is infinite where none can be given."""
    here = Anchored.of(state, memory)
    return certificate_of(here, here.bound(state.w), state.w, 0, look_at)


def certify(
    state: State,
    memory: Examples,
    data: Data,
    *,
    look_at: Data = (),
    passes: int = 1,
    policy: MemoryPolicy | None = None,
    afresh: bool = False,
    seed: int = 0,
) -> Measurement:
    """How far a GLM can be from its retrain, by one pass over the retained data.

    Parameters
    ----------
    state
        The model in question.
    memory
        The rows that the state's memory refers to. A dense GLM's is chosen anew, by the `policy`.
    data
        All examples that the state stands for.
    look_at
        Examples (the holdout) whose predictions are bounded, too.
    passes
        What the certificate calls the number of passes so far.
    policy
        Of the new memory; without one it stays as large as it was.
    afresh
        Use nothing that the state knows of leverages, by one more pass.
    seed
        Of the choice of memory.

    Returns
    -------
    Measurement
        The certificate, the state with what was measured, and a step towards the retrain.

    Raises
    ------
    ValueError
        For a network, or if the state stands for another number of examples.

    Examples
    --------
    >>> import torch
    >>> from dataclasses import replace
    >>> from core.kprior import Examples, certify, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.linspace(-2, 2, 40)[:, None].double()
    >>> data = [Examples(torch.arange(40), x, (x > torch.sin(9 * x)).double())]
    >>> base = train(spec, data)
    >>> off = replace(base.state, w=base.state.w + 0.01)  # by 0.0141: the bound covers it
    >>> found = certify(off, base.memory, data)
    >>> 0.0141 < found.certificate.bound < 0.015, found.refined_certificate.bound < 1e-3
    (True, True)
    """
    if not state.predictor.linear:
        raise ValueError("no bound exists for a network: it is measured when it is adapted with drawn rows")
    cost = Cost()
    with cost.timed():
        if is_wide(state.predictor):
            result = certify_wide(state, memory, data, look_at, cost)
        else:
            result = certify_dense(state, memory, data, look_at, passes, cost, policy, afresh, seed)
    return replace(result, cost=cost)


def refine(
    state: State,
    memory: Examples,
    data: Data,
    *,
    tolerance: float,
    rounds: int = 3,
    look_at: Data = (),
    policy: MemoryPolicy | None = None,
    forced: bool = False,
    afresh: bool = False,
    seed: int = 0,
) -> Measurement:
    """Bring the relative bound of a GLM below the tolerance by as few passes as it takes.

    Parameters
    ----------
    state, memory, data
        As for `certify`.
    tolerance
        Of bound / |w|.
    rounds
        Passes at most; a wide model may take more, since its passes cost less.
    look_at
        Examples (the holdout) whose predictions are bounded, too.
    policy
        Of the new memory; without one it stays as large as it was.
    forced
        Make a pass even where the anchor's sums are enough.
    afresh
        Use nothing but the weights of the state: its sums are measured first of all.
    seed
        Of the choice of memory.

    Returns
    -------
    Measurement
        Whose state is the refined one. Its certificate says whether the tolerance was met.

    Raises
    ------
    ValueError
        As `certify`.

    Examples
    --------
    >>> import torch
    >>> from dataclasses import replace
    >>> from core.kprior import Examples, refine, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.linspace(-2, 2, 40)[:, None].double()
    >>> data = [Examples(torch.arange(40), x, (x > torch.sin(9 * x)).double())]
    >>> base = train(spec, data)
    >>> off = replace(base.state, w=base.state.w + 0.1)
    >>> found = refine(off, base.memory, data, tolerance=1e-6)
    >>> found.certificate.relative <= 1e-6, torch.allclose(found.state.w, base.state.w)
    (True, True)
    """
    if rounds < 1:
        raise ValueError("rounds must be at least 1")
    cost, best = Cost(), None
    if is_wide(state.predictor):
        with cost.timed():
            most = max(rounds, WIDE_PASSES)
            return certify_wide(state, memory, data, look_at, cost, tolerance=tolerance, rounds=most)
    if is_dense(state) and not forced:
        with cost.timed():
            free = certify_anchored(state, memory, look_at)
        if within(free, tolerance):
            return Measurement(free, state, memory, None, None, cost)
    spent = 0
    if is_dense(state) and state.anchor.exact and not forced and state.predictor.size >= GRADIENT_SIZE and rounds > 1:
        nearer = certify_by_gradients(state, memory, data, tolerance, rounds - 1, look_at)
        cost, spent, state = cost + nearer.cost, nearer.cost.data_passes, nearer.state
        if within(nearer.certificate, tolerance):
            return replace(nearer, cost=cost)
    for passes in range(spent + 1, rounds + 1):
        first = afresh and passes == 1
        asked = {"look_at": look_at, "passes": passes, "policy": policy, "afresh": first, "seed": seed}
        measured = certify(state, memory, data, **asked)  # type: ignore[arg-type]
        cost = cost + measured.cost
        if best is not None and not measured.value <= best.value + 1e-9 * abs(best.value):
            # the step went too far: most of the way back
            state, memory = replace(best.state, w=best.state.w + (state.w - best.state.w) / 8), best.memory
            continue
        best = measured
        refined, there = measured.refined, measured.refined_certificate
        if refined is None or there is None:
            return replace(measured, cost=cost)
        if within(there, tolerance) or passes == rounds:
            if within(measured.certificate, tolerance) and not within(there, tolerance):
                return replace(measured, refined=None, refined_certificate=None, cost=cost)
            return Measurement(there, refined, measured.memory, None, None, cost)
        state, memory = refined, measured.memory
    assert best is not None
    return replace(best, cost=cost)


def within(certificate: Certificate, tolerance: float) -> bool:
    """Whether a certificate meets a tolerance of the relative bound; never for a network, which has none."""
    return certificate.relative is not None and certificate.relative <= tolerance


def certify_by_gradients(
    state: State, memory: Examples, data: Data, tolerance: float, rounds: int, look_at: Data
) -> Measurement:
    """Passes that gather the gradient alone, and steps by the anchor's Hessian, which stays where it is.

    For a model of many weights such a pass costs a small part of one that gathers curvature. It knows, too, how far the
    outputs have moved from the anchor: beyond SPREAD the anchor has little to say, and it is given up.
    """
    cost, predictor = Cost(), state.predictor
    with cost.timed():
        here = Anchored.of(state, memory)
        regularizer, anchor, c = here.regularizer, here.anchor, predictor.family.self_concordance
        w, certificate = state.w, Certificate("bound", math.inf, 0, math.inf, math.inf)
        near = here.spread(w) <= SPREAD  # where examples at hand have moved further, so have others
        while near and cost.data_passes < rounds:
            seen = accumulate(data, Statistics(predictor, w, slope=True, careful=True, origin=anchor.w))
            check_count(state, seen.count)
            cost.backward_passes += seen.count
            cost.data_passes += 1
            k = seen.gradient + regularizer.gradient(w)
            error = 4 * EPSILON * (seen.rounding + float((regularizer.delta * w).abs().sum()))
            bound = bound_from(anchor, regularizer, c, here.factor, k, c * seen.spread, error=error)
            certificate = certificate_of(here, bound, w, cost.data_passes, look_at)
            if within(certificate, tolerance) or not seen.spread <= SPREAD:
                break
            # after the step the gradient is what curvature changed on the way: no pass is needed to bound that
            size = float((here.factor.T @ bound.step).norm())
            spread = c * (seen.spread + math.sqrt(anchor.peak) * size)
            w = without_shift(w + bound.step, shift_directions(predictor, regularizer.delta))
            blur = hessian_blur(anchor, regularizer)
            if not (spread < 50 and blur < 0.5):
                break
            rest = math.expm1(spread - math.log1p(-blur)) * size
            scale = anchor.mass + float(regularizer.delta.sum())
            error = 2 * error + matrix_rounding(scale, predictor.size) * float(bound.step.norm())
            bound = bound_from(anchor, regularizer, c, here.factor, 0 * k, spread, rest=rest, error=error)
            certificate = certificate_of(here, bound, w, cost.data_passes, look_at)
            if within(certificate, tolerance):
                break
    return Measurement(certificate, replace(state, w=w), memory, None, None, cost)


def certificate_of(here: Anchored, bound: AnchoredBound, w: Tensor, passes: int, look_at: Data = ()) -> Certificate:
    """A dense GLM's bound in all the ways that people ask for it."""
    prediction = None
    if math.isfinite(bound.radius):
        prediction = prediction_bound(here.predictor, w, bound.step, bound.radius, here.factor, look_at)
    size = float(w.norm())
    relative = bound.distance / size if size > 0 else (0.0 if bound.distance == 0 else math.inf)
    return Certificate("bound", bound.gradient_norm, passes, bound.distance, relative, prediction)


def check_count(state: State, count: int) -> None:
    """A bound from other rows than those a state stands for would be none."""
    if count != state.count:
        raise ValueError(f"the state stands for {state.count} examples, but {count} were given to certify it")


def certify_dense(
    state: State,
    memory: Examples,
    data: Data,
    look_at: Data,
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
    here = Anchored.of(exact, measured.rows)
    bound = here.bound(w)
    certificate = certificate_of(here, bound, w, passes, look_at)
    try:
        there = here.solve(w, Training(), Cost())
    except ArithmeticError:
        there = w + 0.01 * bound.step  # a direction of descent: the next pass will tell
    refined = certificate_of(here, here.bound(there), there, passes, look_at)
    return Measurement(certificate, exact, measured.rows, replace(exact, w=there), refined, cost, value)


def certify_wide(
    state: State,
    memory: Examples,
    data: Data,
    look_at: Data,
    cost: Cost,
    *,
    tolerance: float = math.inf,
    rounds: int = 1,
) -> Measurement:
    """Passes for the gradient alone, until the bound is within the tolerance or the rounds are spent."""
    moved, found = refine_wide(state, memory, data, tolerance, rounds, cost)
    prediction = prediction_bound_by_length(state.predictor, found.w, found.bound, look_at)
    relative = found.relative
    certificate = Certificate("bound", found.gradient_norm, found.passes, found.bound, relative, prediction)
    return Measurement(certificate, moved, memory, None, None, cost)
