"""One pass over all the data that a state stands for: its anchor, its memory, its surrogate.

Training ends with it, and a certificate that needs a pass begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.cost import Cost
from core.kprior.curvature import Full, curvature_for
from core.kprior.curvature.informed_space import InformedSpace
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import PartitionedData, accumulate
from core.kprior.memory.memory import Memory, MemoryPolicy
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.gauge import fill_gauge, shift_directions
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.surrogate import Surrogate
from core.kprior.passes.accumulator import Combined
from core.kprior.passes.last_layer import LastLayer, LastLayerSum, has_last_layer
from core.kprior.passes.leverage import largest_ratio, whitener
from core.kprior.passes.loss import Loss
from core.kprior.passes.rounding_error import matrix_rounding
from core.kprior.passes.row_count import Count
from core.kprior.passes.second_order import CurvatureSum, SurrogateSum

ROUNDING_SLACK = 1 + 1e-6
"""Allows for the rounding of a leverage."""


@dataclass(frozen=True)
class PassResult:
    """What one pass found at given weights."""

    anchor: Anchor
    memory: Memory
    rows: Examples
    """Those that the memory refers to."""
    surrogate: Surrogate | None
    last_layer: LastLayer | None
    count: int
    value: float
    """The loss of all rows, without the regularizer."""


def measure(
    predictor: Predictor,
    regularizer: L2,
    w: Tensor,
    data: Data,
    size: int,
    policy: MemoryPolicy,
    kind: str | None,
    cost: Cost,
    *,
    seed: int = 0,
    generation: int = 0,
    near: Tensor | None = None,
) -> PassResult:
    """Sums and memory at given weights, by one pass; by two without `near`, where leverage is wanted.

    Parameters
    ----------
    predictor, regularizer, w
        The model, its penalty and the weights (P,).
    data
        All rows that the state stands for.
    size, policy
        How many rows to remember, and which.
    kind
        The curvature's backend; "auto" for the one that suits, None for none.
    cost
        Counts the passes.
    seed, generation
        Of the choice of memory.
    near
        (P, P) a Hessian of about these weights, in whose norm leverage is measured first.
    """
    if kind == "auto":
        kind = curvature_for(predictor).kind
    dense = predictor.linear and kind == "full"
    shifts = shift_directions(predictor, regularizer.delta)

    def select(hessian: Tensor | None) -> MemorySelection:
        return MemorySelection(policy, size, predictor, w, hessian, seed, isinstance(data, PartitionedData))

    if dense and near is not None:  # any positive definite matrix will do: what it is to H is found out below
        near = fill_gauge(near, shifts)
        near = near + 1e-10 * near.diagonal().mean() * torch.eye(len(near)).to(near)
    first = None if dense and near is None else select(near if dense else None)
    linear = predictor.linear
    loss, surrogate = Loss(predictor, w, with_hessian=dense, careful=linear), SurrogateSum(predictor, w)
    curved = None if kind is None or dense else CurvatureSum(predictor, w, kind)
    last = LastLayerSum(predictor, w) if has_last_layer(predictor) else None
    accumulate(data, Combined(*(total for total in (loss, curved, surrogate, last, first) if total is not None)))
    cost.backward_passes += loss.count
    cost.data_passes += 1
    curvature = Full(loss.hessian) if dense else None if curved is None else curved.curvature
    anchor = Anchor(w, loss.gradient, curvature, exact=linear, rounding=loss.rounding, value=loss.value)
    H = None
    if dense and bool(loss.hessian.isfinite().all()):
        H = fill_gauge(loss.hessian + torch.diag(regularizer.delta), shifts)
        smallest = smallest_eigenvalue(H, InformedSpace.of(anchor, regularizer.delta, predictor.family.outputs))
        if smallest == 0:
            H = None
    selected = first
    if selected is None:
        selected = accumulate(data, select(H))
        cost.forward_passes += loss.count
        cost.data_passes += 1
    if H is not None:
        ratio = 1.0 if selected.hessian is None or near is None else largest_ratio(near, whitener(H))
        anchor = replace(
            anchor,
            reach=ROUNDING_SLACK * ratio * selected.reach,
            peak=ROUNDING_SLACK * ratio * selected.peak,
            smallest=smallest,
            mass=float(loss.hessian.diagonal().sum()),
        )
    memory, rows = selected.take(generation, data.rows if isinstance(data, PartitionedData) else None)
    last_layer = None if last is None else last.take()
    return PassResult(anchor, memory, rows, surrogate.surrogate, last_layer, loss.count, loss.value)


def smallest_eigenvalue(H: Tensor, space: InformedSpace) -> float:
    """No more than the smallest eigenvalue there, whatever rounding did; zero where it cannot be told from zero.

    Where no example has a say, the penalty is all of H: its own is the smallest.
    """
    inside = space.restrict(H)
    H = inside if len(inside) else H
    margin = matrix_rounding(float(H.diagonal().sum()), len(H))
    least = float(torch.linalg.eigvalsh(H)[0])
    return least - margin if least > 2 * margin else 0.0


def choose_memory(
    predictor: Predictor,
    w: Tensor,
    data: Data,
    size: int,
    policy: MemoryPolicy,
    cost: Cost,
    *,
    seed: int = 0,
    generation: int = 0,
) -> tuple[Memory, Examples, Surrogate | None]:
    """A memory at the weights w, its rows and the surrogate, by a pass that gathers nothing else."""
    selection = MemorySelection(policy, size, predictor, w, None, seed, isinstance(data, PartitionedData))
    count, surrogate = Count(predictor, w), SurrogateSum(predictor, w)
    accumulate(data, Combined(count, surrogate, selection))
    cost.forward_passes += count.count
    cost.data_passes += 1
    memory, rows = selection.take(generation, data.rows if isinstance(data, PartitionedData) else None)
    return memory, rows, surrogate.surrogate
