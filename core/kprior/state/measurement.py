"""One pass over all data that a state represents, which measures its anchor, memory and surrogate.

Training ends with this pass, and a certificate that needs a pass starts with it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.curvature import MAX_FULL_SIZE, Full, curvature_for, solve_factored
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import Memory, MemoryChoice
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.gauge import fill_gauge, shift_directions
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.passes.accumulator import Combined
from core.kprior.passes.cost import Cost
from core.kprior.passes.detail import DetailSum
from core.kprior.passes.last_layer import LastLayer, LastLayerSum, has_last_layer
from core.kprior.passes.leverage import largest_ratio, whitener
from core.kprior.passes.loss import Loss
from core.kprior.passes.partitioned import PartitionedData, accumulate
from core.kprior.passes.rounding_error import matrix_rounding
from core.kprior.passes.row_count import Count
from core.kprior.passes.second_order import CurvatureSum, SurrogateSum
from core.kprior.state.anchor import Anchor
from core.kprior.state.informed_space import InformedSpace

DETAILED = "detailed"
INVERSE_ITERATIONS = 20
"""Iterations that estimate the smallest eigenvalue of a large matrix."""
ROUNDING_SLACK = 1 + 1e-6
"""Allows for the rounding of a leverage."""


@dataclass(frozen=True)
class PassResult:
    """The result of one pass at given weights."""

    anchor: Anchor
    memory: Memory
    rows: Examples
    """The rows that the memory refers to."""
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
    choice: MemoryChoice,
    kind: str | None,
    cost: Cost,
    near: Tensor | None = None,
) -> PassResult:
    """Measure sums and select a memory at given weights, by one pass; by two if leverages are needed without `near`.

    `kind` is the backend of the curvature: "auto" chooses one, None means no curvature, and DETAILED means the full
    matrix together with the anchor's `detail`. `near` (P, P) is an
    approximate Hessian, in whose norm leverages are measured.
    """
    detail = DetailSum(predictor, w) if kind == DETAILED else None
    if detail is not None:
        kind = "full"
    if kind == "auto":
        kind = curvature_for(predictor).kind
    dense = predictor.linear and kind == "full"
    shifts = shift_directions(predictor, regularizer.delta)

    def select(hessian: Tensor | None) -> MemorySelection:
        return MemorySelection(
            choice.policy, choice.size, predictor, w, hessian, choice.seed, isinstance(data, PartitionedData)
        )

    if dense and near is not None:  # any positive definite matrix; its ratio to H is computed below
        near = fill_gauge(near, shifts)
        near = near + 1e-10 * near.diagonal().mean() * torch.eye(len(near)).to(near)
    first = None if dense and near is None else select(near if dense else None)
    linear = predictor.linear
    loss, surrogate = Loss(predictor, w, with_hessian=dense, careful=linear), SurrogateSum(predictor, w)
    curved = None if kind is None or dense else CurvatureSum(predictor, w, kind)
    last = LastLayerSum(predictor, w) if has_last_layer(predictor) else None
    totals = (loss, curved, surrogate, last, first, detail)
    with predictor.sharing_features():
        accumulate(data, Combined(*(total for total in totals if total is not None)))
    cost.backward_passes += loss.count
    cost.data_passes += 1
    curvature = Full(loss.hessian) if dense else None if curved is None else curved.curvature
    anchor = Anchor(w, loss.gradient, curvature, exact=linear, rounding=loss.rounding, value=loss.value)
    H = None
    if dense and bool(loss.hessian.isfinite().all()):
        H = fill_gauge(loss.hessian + torch.diag(regularizer.delta), shifts)
        smallest = smallest_eigenvalue(H, InformedSpace.of(anchor, regularizer.delta, predictor.family))
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
            detail=None if detail is None or detail.detail is None else detail.detail.rounded(),
        )
    memory, rows = selected.take(choice.generation, data.rows if isinstance(data, PartitionedData) else None)
    last_layer = None if last is None else last.take()
    return PassResult(anchor, memory, rows, surrogate.surrogate, last_layer, loss.count, loss.value)


def smallest_eigenvalue(H: Tensor, space: InformedSpace) -> float:
    """A lower bound of the smallest eigenvalue in the space; zero if rounding errors could hide a singular matrix.

    If no example determines any weight, H is the penalty alone.
    """
    inside = space.restrict(H)
    H = inside if len(inside) else H
    margin = matrix_rounding(float(H.diagonal().sum()), len(H))
    least = float(torch.linalg.eigvalsh(H)[0]) if len(H) <= MAX_FULL_SIZE else least_by_factors(H)
    return least - margin if least > 2 * margin else 0.0


def least_by_factors(H: Tensor) -> float:
    """A lower bound of the smallest eigenvalue of a large matrix, close to it; zero if it is not positive.

    Iterations with the inverse estimate the eigenvalue, and a Cholesky factor of H - c I proves that it is above c.
    """
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        return 0.0
    v = torch.ones(len(H), dtype=H.dtype, device=H.device)
    v[::2] = -1
    grown = 0.0
    for _ in range(INVERSE_ITERATIONS):
        v = v / v.norm()
        solved = solve_factored(factor, v)
        grown, v = float(v @ solved), solved
    for fraction in (0.9, 0.7, 0.5, 0.25, 0.1, 0.01):
        shifted = H.clone()
        shifted.diagonal().sub_(fraction / grown)
        if int(torch.linalg.cholesky_ex(shifted)[1]) == 0:
            return fraction / grown
    return 0.0


def choose_memory(
    predictor: Predictor, w: Tensor, data: Data, choice: MemoryChoice, cost: Cost
) -> tuple[Memory, Examples, Surrogate | None]:
    """A memory at the weights w, its rows and the surrogate, by a pass that measures nothing else."""
    selection = MemorySelection(
        choice.policy, choice.size, predictor, w, None, choice.seed, isinstance(data, PartitionedData)
    )
    count, surrogate = Count(predictor, w), SurrogateSum(predictor, w)
    accumulate(data, Combined(count, surrogate, selection))
    cost.forward_passes += count.count
    cost.data_passes += 1
    memory, rows = selection.take(choice.generation, data.rows if isinstance(data, PartitionedData) else None)
    return memory, rows, surrogate.surrogate
