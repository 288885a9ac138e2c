"""Weights after an erasure: those of the examples that are left, whatever the model knew before.

An adaptation ends near the retained optimum w*, not at it, and what is left of the way, w - w*, depends on the weights
it started from: on the erased example. Whoever has the other examples can compute w* and with it that rest, and try
candidates for the example until one of them gives the same rest. So for an erasure

    1. passes are made until the rest is as small as rounding allows: |w - w*| <= b;
    2. w is rounded to a grid of spacing q, thousands of times b: the nearest grid point is the same whatever the rest
       was, unless a coordinate of w* is within b of the middle between two of them. The chance of that is less than
       sum_j |w_j - w*_j| / (q/2)  <=  2 sqrt(P) b / q;
    3. all that the state holds is measured anew at the grid point, and solved from there: sums, memory, leverages and
       weights are functions of the examples that are left.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from core.kprior.adaptation.dense import AnchoredModel
from core.kprior.certificate.anchored_bound import bound_from
from core.kprior.certificate.certificate import Measurement
from core.kprior.certificate.dense import is_dense
from core.kprior.certificate.refinement import refine
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.passes.rounding_error import EPSILON
from core.kprior.state import State

FINEST, COARSEST = 2.0**-10, 2.0**-6
"""How far the grid point may be from the weights: a share of their length. From a finer one fewer passes lead back to
the optimum; where rounding blurs more (many examples, a weak penalty), only a coarser one hides the rest."""
NEAR_PASSES = 3
"""To the optimum, as near as rounding allows: as many whoever is erased, and more for those alone who weighed so much
that three will not do."""
ROUNDING_SLACK = 4.0
"""How many times the rounding error may be left of the path to the optimum."""
TIE_PROBABILITY = 2.0**-10
"""That a coordinate is so close to the middle between two grid points that the path decides which one it gets."""


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
    """The retained optimum of a dense GLM within the tolerance, as it is found from nothing but the retained `data`.

    Parameters
    ----------
    state, memory
        The adapted model, without the erased examples, and the rows of its memory.
    data
        All examples that are left.
    tolerance
        Of bound / |w|.
    rounds
        Passes at most, for each of both ways: to the grid, and from there.
    holdout
        Examples whose predictions are bounded, too.
    policy
        Of the new memory; the default one without.
    seed
        Of the choice of memory.

    Returns
    -------
    Measurement or None
        None where numbers do not allow it in so many passes: then a training from scratch knows no erased example,
        either.

    Raises
    ------
    ValueError
        If the model is not a GLM that carries its whole curvature.

    Examples
    --------
    Whoever was erased, the weights are the same to the last bit.

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
        raise ValueError("only a linear model that carries its whole curvature can be cleared: train others anew")
    refine_all = partial(refine, policy=policy or MemoryPolicy(), forced=True, seed=seed)
    found = refine_all(state, memory, data, tolerance=0.0, rounds=NEAR_PASSES)
    grid = choose_grid(rounding_of(found), state.predictor.size)
    if grid is None:
        return None
    while not found.certificate.meets(hidden_rest(grid, state.predictor.size)):
        if found.cost.data_passes > rounds:
            return None
        further = refine_all(found.state, found.memory, data, tolerance=0.0, rounds=1)
        found = replace(further, cost=found.cost + further.cost)
    start = replace(found.state, w=round_to_grid(found.state.w, grid))
    clean = refine_all(start, found.memory, data, tolerance=tolerance, rounds=rounds, holdout=holdout, afresh=True)
    if not clean.certificate.meets(tolerance):
        return None
    cost = found.cost + clean.cost
    return replace(clean, certificate=replace(clean.certificate, passes=cost.data_passes), cost=cost)


def rounding_of(found: Measurement) -> float:
    """How far, relative to |w|, rounding alone can have kept weights from the optimum: the retained examples' own."""
    anchored, w = AnchoredModel.of(found.state, found.memory), found.state.w
    error = 4 * EPSILON * (2 * anchored.anchor.rounding + float(anchored.regularizer.magnitude(w).sum()))
    family = anchored.predictor.family
    if family.kinked:  # between the kinks it is a quadratic
        return (
            error / anchored.anchor.smallest / float(w.norm()) if anchored.anchor.smallest > 0 and w.any() else math.inf
        )
    bound = bound_from(
        anchored.anchor, anchored.regularizer, family, anchored.factor, torch.zeros_like(w), 0.0, error=error
    )
    return bound.distance / float(w.norm()) if bound.distance > 0 else 0.0


def choose_grid(rounding: float, size: int) -> float | None:
    """The finest grid that hides what rounding left of the way of `size` weights; None if none does.

    That is the retained examples' alone: whoever is erased, the grid is the same.

    >>> choose_grid(1e-13, 10) == FINEST, choose_grid(1e-8, 25) == 2**-7, choose_grid(1e-3, 10)
    (True, True, None)
    """
    grid = ROUNDING_SLACK * rounding / hidden_rest(1.0, size)
    if not grid <= COARSEST:
        return None
    return max(FINEST, 2.0 ** math.ceil(math.log2(grid))) if grid > 0 else FINEST


def hidden_rest(grid: float, size: int) -> float:
    """The rest, relative to |w|, that a grid hides with a probability of 1 - TIE_PROBABILITY."""
    # with a spacing of at least grid |w| / (2 sqrt(P)), 2 sqrt(P) b / q is at most 4 P b / (grid |w|)
    return TIE_PROBABILITY * grid / (4 * size)


def round_to_grid(w: Tensor, grid: float) -> Tensor:
    """The nearest point of the coarsest grid of a power of two that is no further than grid/2 times |w| from any w.

    >>> round_to_grid(torch.tensor([3.0, 4.0001], dtype=torch.float64), FINEST)
    tensor([3., 4.], dtype=torch.float64)
    """
    length = float(w.norm()) * grid / math.sqrt(len(w))
    if length == 0:
        return torch.zeros_like(w)
    spacing = 2.0 ** math.floor(math.log2(length))
    # of a weight of -0.0 the sign would tell from which side it came
    return torch.round(w / spacing) * spacing + 0.0
