"""Certificates by passes over the retained data, and refinement until the bound is small enough."""

import math
from dataclasses import dataclass, replace

from core.kprior.certificate.dense import approach, certify_anchored, certify_by_gradients, certify_dense, is_dense
from core.kprior.certificate.result import Measurement, Reuse
from core.kprior.certificate.wide import certify_wide
from core.kprior.curvature import is_wide
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.passes.cost import Cost
from core.kprior.state import State

MIN_WEIGHTS_FOR_GRADIENT_PASS = 200
"""Models of this size and above first try a pass for the gradient alone."""
APPROACH_PASSES = 2
"""Passes that first bring the weights close, if the sums of a state are estimates."""
MAX_GRADIENT_PASSES = 2
"""The maximum number of such passes between two passes that measure the curvature."""
MAX_WIDE_PASSES = 60
"""The maximum for a wide model; each costs a small fraction of a pass that measures the curvature."""


def certify(state: State, memory: Examples, data: Data, *, holdout: Data = ()) -> Measurement:
    """Bound the distance of a GLM to a retrain, by one pass over the retained data.

    Parameters
    ----------
    state
        The model.
    memory
        The rows that the state's memory refers to. The memory of a dense GLM is selected anew, with the same size.
    data
        All examples that the state represents.
    holdout
        Examples whose predictions are bounded as well.

    Returns
    -------
    Measurement
        The certificate, the state with the measured sums, and a step towards the retrain.

    Raises
    ------
    ValueError
        If the model is a network, or if the state represents another number of examples.

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
    >>> off = replace(base.state, w=base.state.w + 0.01)  # at a distance of 0.0141, which the bound covers
    >>> found = certify(off, base.memory, data)
    >>> 0.0141 < found.certificate.bound < 0.015, found.refined_certificate.bound < 1e-3
    (True, True)
    """
    require_linear(state)
    timer = Cost()
    with timer.timed():
        if is_wide(state.predictor):
            result = certify_wide(state, memory, data, holdout, Cost(), rounds=0)
        else:
            result = certify_dense(state, memory, data, holdout, 1, None, Reuse.LEVERAGES, seed=0)
    return replace(result, cost=result.cost + timer)


def refine(
    state: State,
    memory: Examples,
    data: Data,
    *,
    tolerance: float,
    rounds: int = 3,
    holdout: Data = (),
    policy: MemoryPolicy | None = None,
    seed: int = 0,
) -> Measurement:
    """Bring the relative bound of a GLM below the tolerance, with as few passes as possible.

    Parameters
    ----------
    state, memory, data
        As for `certify`.
    tolerance
        The largest acceptable bound / |w|.
    rounds
        The maximum number of passes. A wide model may take more, because its passes cost less.
    holdout
        Examples whose predictions are bounded as well.
    policy
        How the new memory is selected; by default, it keeps its size.
    seed
        Seed of the selection of the memory.

    Returns
    -------
    Measurement
        Its state is the refined one, and its certificate says whether the tolerance was met.

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
    return Refinement(tolerance, rounds, holdout, policy, seed).run(state, memory, data)


@dataclass(frozen=True)
class Refinement:
    """The options of `refine`, and which parts of a state a refinement may rely on."""

    tolerance: float
    rounds: int = 3
    holdout: Data = ()
    policy: MemoryPolicy | None = None
    seed: int = 0
    reuse: Reuse = Reuse.SUMS

    def run(self, state: State, memory: Examples, data: Data) -> Measurement:
        """Refine a GLM; as `refine`."""
        require_linear(state)
        if self.rounds < 1:
            raise ValueError("`rounds` must be at least 1.")
        tolerance, rounds, holdout, seed = self.tolerance, self.rounds, self.holdout, self.seed
        cost, best, sure = Cost(), None, None
        forced, afresh = self.reuse is not Reuse.SUMS, self.reuse is Reuse.WEIGHTS
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
            reuse = Reuse.LEVERAGES if afresh and passes > 1 else self.reuse
            timer = Cost()
            with timer.timed():
                measured = certify_dense(state, memory, data, holdout, passes, self.policy, reuse, seed)
            cost = cost + measured.cost + timer
            if best is not None and not measured.value <= best.value + 1e-9 * abs(best.value):
                # The step was too long: go most of the way back.
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
                # The anchor is close now, so a pass for the gradient alone may suffice.
                nearer = certify_by_gradients(state, memory, data, tolerance, few, holdout)
                cost, state = cost + nearer.cost, nearer.state
                passes += nearer.cost.data_passes
                if nearer.certificate.meets(tolerance):
                    return replace(nearer, certificate=replace(nearer.certificate, passes=passes), cost=cost)
        assert sure is not None
        return ended(sure, passes, cost)


def require_linear(state: State) -> None:
    """Raise ValueError for a network."""
    if not state.predictor.linear:
        raise ValueError("No bound exists for a network; `adapt` measures it instead.")


def smaller_bound(last: Measurement, before: Measurement | None) -> Measurement:
    """The measurement with the smaller bound, or else the last one.

    Far from the retrain, a lower value of the objective does not imply a smaller bound.
    """
    found = [last] if before is None else [last, before]
    return min(found, key=lambda each: math.inf if each.certificate.bound is None else each.certificate.bound)


def ended(found: Measurement, passes: int, cost: Cost) -> Measurement:
    """The result of a refinement after `passes` passes."""
    certificate = replace(found.certificate, passes=passes)
    return replace(found, certificate=certificate, refined=None, refined_certificate=None, cost=cost)
