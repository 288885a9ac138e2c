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

import torch
from torch import Tensor

from core.kprior.certificate.certificate import Measurement, is_dense, refine, within
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.state import State

GRID = 2.0**-10
"""How far the grid point is from the weights, at the most: a share of their length."""
CHANCE = 2.0**-10
"""That a coordinate is so near to the middle between two grid points that the way there decides."""


def refine_for_erasure(
    state: State,
    memory: Examples,
    data: Data,
    *,
    tolerance: float,
    rounds: int = 5,
    look_at: Data = (),
    policy: MemoryPolicy | None = None,
    seed: int = 0,
) -> Measurement | None:
    """The retained optimum of a dense GLM within the tolerance, as it is found from nothing but the retained `data`.

    None where numbers do not allow it in so many passes: then a training from scratch knows no erased example, either.
    """
    if not is_dense(state):
        raise ValueError("only a linear model that carries its whole curvature can be cleared: train others anew")
    near = CHANCE * GRID / (4 * state.predictor.size)
    options = {"rounds": rounds, "policy": policy, "forced": True, "seed": seed}
    found = refine(state, memory, data, tolerance=near, **options)  # type: ignore[arg-type]
    if not within(found.certificate, near):
        return None
    start = replace(found.state, w=round_to_grid(found.state.w))
    clean = refine(start, found.memory, data, tolerance=tolerance, look_at=look_at, afresh=True, **options)  # type: ignore[arg-type]
    if not within(clean.certificate, tolerance):
        return None
    cost = found.cost + clean.cost
    return replace(clean, certificate=replace(clean.certificate, passes=cost.data_passes), cost=cost)


def round_to_grid(w: Tensor) -> Tensor:
    """The nearest point of the coarsest grid of a power of two that is no further than GRID/2 times |w| from any w.

    >>> round_to_grid(torch.tensor([3.0, 4.0001], dtype=torch.float64))
    tensor([3., 4.], dtype=torch.float64)
    """
    length = float(w.norm()) * GRID / math.sqrt(len(w))
    spacing = 2.0 ** math.floor(math.log2(length))
    return torch.round(w / spacing) * spacing
