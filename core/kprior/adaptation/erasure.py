"""Weights after an erasure, which depend on the remaining examples alone.

An adaptation ends near the retained optimum w*, not at it, and the remainder w - w* depends on the weights it started
from, and so on the erased example. Someone who has the other examples can compute w* and this remainder, and try
candidates for the erased example until one of them gives the same remainder. So for an erasure

    1. passes are made until the remainder is as small as rounding allows: |w - w*| <= b;
    2. w is rounded to a grid of spacing q, thousands of times b: the nearest grid point does not depend on the
       remainder, unless a coordinate of w* is within b of the midpoint between two grid points. The probability of
       that is less than sum_j |w_j - w*_j| / (q/2)  <=  2 sqrt(P) b / q;
    3. everything in the state is measured anew at the grid point, and the objective is solved from there: sums, memory,
       leverages and weights are functions of the remaining examples.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.certificate.anchored_bound import GradientUncertainty, bound_from
from core.kprior.certificate.anchored_model import AnchoredModel
from core.kprior.certificate.dense import certify_by_gradients, is_dense
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Measurement, Reuse
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.passes.cost import Cost
from core.kprior.passes.rounding_error import EPSILON
from core.kprior.state import State

FINEST, COARSEST = 2.0**-10, 2.0**-6
"""The distance of the grid point from the weights, as a fraction of their length. From a finer grid, fewer passes lead
back to the optimum; if rounding errors are large (many examples, a weak penalty), only a coarser one hides the
remainder."""
NEAR_PASSES = 3
"""Passes to the optimum, as near as rounding allows, that are reported. How many were made depends on the influence of
the erased examples, so their number would reveal something."""
GRADIENT_PASSES = 2
"""Maximum number of passes that measure the gradient alone, before one that measures everything."""
GRADIENT_TOLERANCE = 1e-10
"""Bound / |w| from which the pass that measures everything reaches the optimum, as near as rounding allows."""
MAX_NEAR_PASSES = 20
"""Beyond this, the optimum is not found. Newton's method from any start takes about eight."""
ROUNDING_SLACK = 4.0
"""The largest acceptable remainder, as a multiple of the rounding error."""
TIE_PROBABILITY = 2.0**-10
"""Probability that a coordinate is so close to the midpoint between two grid points that the remainder decides."""


def refine_for_erasure(
    state: State,
    memory: Examples,
    data: Data,
    *,
    tolerance: float,
    rounds: int = 5,
    holdout: Data = (),
    policy: MemoryPolicy | None = None,
    seed: int = 0,
) -> Measurement | None:
    """Bring a dense GLM to weights within the tolerance that depend on the retained `data` alone.

    Parameters
    ----------
    state, memory
        The adapted model, without the erased examples, and the rows of its memory.
    data
        All remaining examples.
    tolerance
        The largest acceptable bound / |w|.
    rounds
        The maximum number of passes from the grid to weights within the tolerance.
    holdout
        Examples whose predictions are bounded as well.
    policy
        How the new memory is selected.
    seed
        Seed of the selection of the memory.

    Returns
    -------
    Measurement or None
        The same bytes from every start near enough to the optimum. Its cost does not include passes that only some
        starts need. None if rounding errors or the tolerance do not allow it, which depends on the remaining examples;
        training from scratch is then the alternative.

    Raises
    ------
    ValueError
        If the model is not a GLM that carries its whole curvature.

    Examples
    --------
    The weights are the same to the last bit, whichever example was erased.

    >>> import torch
    >>> from core.kprior import Examples, RemoveData, adapt, refine_for_erasure, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.linspace(-2, 2, 40)[:, None].double()
    >>> left = Examples(torch.arange(40), x, (x > torch.sin(9 * x)).double())
    >>> weights = []
    >>> for value in (0.5, 3.0):
    ...     person = Examples(torch.tensor([99]), torch.tensor([[value]]).double(), torch.zeros(1, 1).double())
    ...     base = train(spec, [left, person])
    ...     adapted = adapt(base.state, base.memory, [RemoveData([person])])
    ...     weights.append(refine_for_erasure(adapted.state, adapted.memory, [left], tolerance=0.01).state.w)
    >>> torch.equal(*weights)
    True
    """
    if not is_dense(state):
        raise ValueError(
            "Only a GLM that carries its whole curvature can be refined for an erasure. Retrain the model."
        )
    nearer = Refinement(0.0, NEAR_PASSES, policy=policy or MemoryPolicy(), seed=seed, reuse=Reuse.LEVERAGES)
    size, passes = state.predictor.size, NEAR_PASSES
    if state.anchor.exact and not state.predictor.family.kinked:
        close = certify_by_gradients(state, memory, data, GRADIENT_TOLERANCE, GRADIENT_PASSES, ())
        if close.certificate.meets(GRADIENT_TOLERANCE):
            state, nearer = close.state, replace(nearer, rounds=1)
    found = nearer.run(state, memory, data)
    while not is_hidden(found, grid := choose_grid(rounding := rounding_of(found), size)):
        at_optimum = grid is None and found.certificate.meets(2 * ROUNDING_SLACK * rounding)
        if at_optimum or passes >= MAX_NEAR_PASSES:
            return None
        found, passes = replace(nearer, rounds=1).run(found.state, found.memory, data), passes + 1
    assert grid is not None
    forgotten = replace(found.state.memory, generation=0)  # the number of adaptations may depend on erased examples
    start = replace(found.state, w=round_to_grid(found.state.w, grid), memory=forgotten)
    last = replace(nearer, tolerance=tolerance, rounds=rounds, holdout=holdout, reuse=Reuse.WEIGHTS)
    clean = last.run(start, found.memory, data)
    if not clean.certificate.meets(tolerance):
        return None
    cost = clean.cost + Cost(NEAR_PASSES, NEAR_PASSES * state.count)
    return replace(clean, certificate=replace(clean.certificate, passes=cost.data_passes), cost=cost)


def is_hidden(found: Measurement, grid: float | None) -> bool:
    """Whether a grid hides how far the weights are from the optimum."""
    return grid is not None and found.certificate.meets(hidden_rest(grid, found.state.predictor.size))


def rounding_of(found: Measurement) -> float:
    """The distance to the optimum that rounding alone can cause, relative to |w|; it depends on retained examples
    alone."""
    anchored, w = AnchoredModel.of(found.state, found.memory), found.state.w
    error = 4 * EPSILON * (2 * anchored.anchor.rounding + float(anchored.regularizer.magnitude(w).sum()))
    family = anchored.predictor.family
    if family.kinked:  # the objective is quadratic between the kinks
        return (
            error / anchored.anchor.smallest / float(w.norm()) if anchored.anchor.smallest > 0 and w.any() else math.inf
        )
    given = (anchored.anchor, anchored.regularizer, family, anchored.factor, torch.zeros_like(w), 0.0)
    bound = bound_from(*given, GradientUncertainty(error=error))
    return bound.distance / float(w.norm()) if bound.distance > 0 else 0.0


def choose_grid(rounding: float, size: int) -> float | None:
    """The finest grid that hides the remainder of `size` weights; None if none does.

    It depends on the retained examples alone.

    >>> choose_grid(1e-13, 10) == FINEST, choose_grid(1e-8, 25) == 2**-7, choose_grid(1e-3, 10)
    (True, True, None)
    """
    grid = ROUNDING_SLACK * rounding / hidden_rest(1.0, size)
    if not grid <= COARSEST:
        return None
    return max(FINEST, 2.0 ** math.ceil(math.log2(grid))) if grid > 0 else FINEST


def hidden_rest(grid: float, size: int) -> float:
    """The largest remainder, relative to |w|, that a grid hides with a probability of 1 - TIE_PROBABILITY."""
    # with a spacing of at least grid |w| / (2 sqrt(P)), 2 sqrt(P) b / q is at most 4 P b / (grid |w|)
    return TIE_PROBABILITY * grid / (4 * size)


def round_to_grid(w: Tensor, grid: float) -> Tensor:
    """The nearest point of a grid whose spacing is a power of two, at most grid/2 times |w| from w.

    >>> round_to_grid(torch.tensor([3.0, 4.0001], dtype=torch.float64), FINEST)
    tensor([3., 4.], dtype=torch.float64)
    """
    length = float(w.norm()) * grid / math.sqrt(len(w))
    if length == 0:
        return torch.zeros_like(w)
    spacing = 2.0 ** math.floor(math.log2(length))
    # The sign of -0.0 would reveal from which side the weight came.
    return torch.round(w / spacing) * spacing + 0.0
