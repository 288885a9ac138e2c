"""Certificates by passes over the retained data, and refinement until they are good enough."""

from __future__ import annotations

import math
from dataclasses import replace

from core.kprior.certificate.certificate import Measurement
from core.kprior.certificate.dense import approach, certify_anchored, certify_by_gradients, certify_dense, is_dense
from core.kprior.certificate.wide import certify_wide
from core.kprior.cost import Cost
from core.kprior.curvature import is_wide
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.state import State

MIN_WEIGHTS_FOR_GRADIENT_PASS = 200
"""From this size on, a pass for the gradient alone is tried first."""
APPROACH_PASSES = 2
"""Passes to get close first, where the sums of a state are estimates."""
MAX_GRADIENT_PASSES = 2
"""Between two passes that gather curvature."""
MAX_WIDE_PASSES = 60
"""Of a wide model's refinement: each costs a small fraction of a pass that gathers curvature."""


def certify(
    state: State,
    memory: Examples,
    data: Data,
    *,
    holdout: Data = (),
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
    holdout
        Examples whose predictions are bounded, too.
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
            result = certify_wide(state, memory, data, holdout, cost)
        else:
            result = certify_dense(state, memory, data, holdout, passes, cost, policy, afresh, seed)
    return replace(result, cost=cost)


def refine(
    state: State,
    memory: Examples,
    data: Data,
    *,
    tolerance: float,
    rounds: int = 3,
    holdout: Data = (),
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
    holdout
        Examples whose predictions are bounded, too.
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
    >>> found.certificate.relative <= 1e-6, torch.allclose(found.state.w, base.state.w, atol=1e-5)
    (True, True)
    """
    if rounds < 1:
        raise ValueError("rounds must be at least 1")
    cost, best, sure = Cost(), None, None
    if is_wide(state.predictor):
        with cost.timed():
            max_passes = max(rounds, MAX_WIDE_PASSES)
            return certify_wide(state, memory, data, holdout, cost, tolerance=tolerance, rounds=max_passes)
    if is_dense(state) and not forced:
        with cost.timed():
            free = certify_anchored(state, memory, holdout)
        if free.meets(tolerance):
            return Measurement(free, state, memory, None, None, cost)
    spent = 0
    if (
        is_dense(state)
        and state.anchor.exact
        and not forced
        and state.predictor.size >= MIN_WEIGHTS_FOR_GRADIENT_PASS
        and rounds > 1
    ):
        nearer = certify_by_gradients(state, memory, data, tolerance, rounds - 1, holdout)
        cost, spent, state = cost + nearer.cost, nearer.cost.data_passes, nearer.state
        if nearer.certificate.meets(tolerance):
            return replace(nearer, cost=cost)
    if is_dense(state) and not state.anchor.exact and not (forced or afresh) and rounds > APPROACH_PASSES + 2:
        state, approached = approach(state, data, APPROACH_PASSES, seed)
        cost, spent = cost + approached, approached.data_passes
    passes = spent
    while passes < rounds:
        passes += 1
        first = afresh and passes == 1
        asked = {"holdout": holdout, "passes": passes, "policy": policy, "afresh": first, "seed": seed}
        measured = certify(state, memory, data, **asked)  # type: ignore[arg-type]
        cost = cost + measured.cost
        if best is not None and not measured.value <= best.value + 1e-9 * abs(best.value):
            # the step went too far: most of the way back
            state, memory = replace(best.state, w=best.state.w + (state.w - best.state.w) / 8), best.memory
            continue
        best, sure = measured, smaller_bound(measured, sure)
        refined, there = measured.refined, measured.refined_certificate
        if refined is None or there is None:
            return ended(sure, passes, cost)
        if there.meets(tolerance) or passes == rounds:
            last = Measurement(there, refined, measured.memory, None, None, cost)
            return last if there.meets(tolerance) else ended(smaller_bound(last, sure), passes, cost)
        state, memory = refined, measured.memory
        few = min(MAX_GRADIENT_PASSES, rounds - passes - 1)
        if few > 0 and not forced:
            # the anchor is near now: a pass for the gradient alone may do
            nearer = certify_by_gradients(state, memory, data, tolerance, few, holdout)
            cost, state = cost + nearer.cost, nearer.state
            passes += nearer.cost.data_passes
            if nearer.certificate.meets(tolerance):
                return replace(nearer, certificate=replace(nearer.certificate, passes=passes), cost=cost)
    assert sure is not None
    return ended(sure, passes, cost)


def smaller_bound(last: Measurement, before: Measurement | None) -> Measurement:
    """That of the smaller bound, which a lower objective need not have far from the retrain; the last, if none has."""
    found = [last] if before is None else [last, before]
    return min(found, key=lambda each: math.inf if each.certificate.bound is None else each.certificate.bound)


def ended(found: Measurement, passes: int, cost: Cost) -> Measurement:
    """What refinement ends with, after so many passes."""
    certificate = replace(found.certificate, passes=passes)
    return replace(found, certificate=certificate, refined=None, refined_certificate=None, cost=cost)
