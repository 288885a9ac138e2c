"""The sums of a GLM after a change: removed examples are subtracted and new ones added, all at the anchor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.adaptation.memory_renewal import LeverageBounds, renew_memory
from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.certificate.anchored_model import AnchoredModel, PastSums, exact_rows
from core.kprior.certificate.exact_rows import ExactRows
from core.kprior.curvature import Full, cholesky, ggn_rows
from core.kprior.curvature.base import per_row
from core.kprior.curvature.surrogate import change_surrogate
from core.kprior.data.examples import Data, Examples, chunks_of, require_rereadable
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.transfer import new_regularizer
from core.kprior.passes.cost import Cost
from core.kprior.passes.detail import Detail
from core.kprior.passes.loss import Loss
from core.kprior.passes.rounding_error import EPSILON, feature_blur, matrix_rounding, round_up
from core.kprior.state import State, count_after
from core.kprior.state.anchor import Anchor, hessian_of
from core.kprior.state.informed_space import InformedSpace
from core.kprior.state.measurement import smallest_eigenvalue

EXACT_NUMBERS = 2**25
"""Added examples are kept as rows while their features have at most this many numbers; beyond, only their tangents."""


EIGENVALUE_SIZE = 500
"""Number of weights up to which eigenvalues are worth their cost."""


def change_sums(request: AdaptationRequest, cost: Cost) -> AnchoredModel:
    """Subtract removed examples from the sums at the anchor, add new ones, and update all error bounds."""
    state, task_set = request.state, request.task_set
    predictor, anchor = state.predictor, state.anchor
    regularizer = new_regularizer(state, task_set, predictor)
    assert isinstance(anchor.curvature, Full)
    removed, added = RowSums.of(predictor, anchor.w, task_set.removed), RowSums.of(predictor, anchor.w, task_set.added)
    count = count_after(state, removed.keys, added.keys)
    check_removed(state, removed)
    cost.backward_passes += len(removed.keys) + len(added.keys)
    matrix = anchor.curvature.matrix
    G = Full(matrix - removed.loss.hessian if len(removed.keys) else matrix.clone())
    if len(added.keys):
        G.matrix += added.loss.hessian
    if not anchor.exact:
        G.clip()  # more may be subtracted than an estimate contains
    moved = Anchor(
        anchor.w,
        anchor.gradient - removed.loss.gradient + added.loss.gradient,
        G,
        anchor.exact,
        rounding=round_up(anchor.rounding + removed.loss.rounding + added.loss.rounding),
        mass=round_up(anchor.mass + removed.mass + added.mass),
        value=anchor.value - removed.loss.value + added.loss.value,
        turnover=round_up(max(anchor.turnover, anchor.value) + removed.loss.value + added.loss.value),
        detail=changed_detail(predictor, anchor, removed, added),
    )
    H = hessian_of(predictor, regularizer, moved)
    factor, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        factor = cholesky(H)
    ratio = shrinkage(state, regularizer, removed, H, factor)
    reach, peak, smallest = anchor.reach * ratio, anchor.peak * ratio, anchor.smallest / ratio
    family, before = predictor.family, state.regularizer.delta
    space = InformedSpace.of(moved, regularizer.delta, family)
    past_space = InformedSpace.of(anchor, before, family)
    grown = not past_space.holds(space)
    if grown:  # some weight was determined by the penalty alone until now
        smallest = min(anchor.smallest, past_space.least_penalty(before)) / ratio
    if past_space.differences and not space.differences:  # flat directions of a softmax were excluded, and count now
        smallest = 0.0
    if regularizer is not state.regularizer or (grown and len(H) <= EIGENVALUE_SIZE):
        smallest = max(smallest, smallest_eigenvalue(H, space))
    if int(failed):  # the factor belongs to another matrix, so nothing follows from it
        reach, peak, smallest = math.inf, math.inf, 0.0
    leverage = LeverageBounds(factor, reach, peak)
    kept, rows, leverage = renew_memory(request, removed.keys, added.examples(), leverage, count)
    exact = [exact_rows(predictor, anchor.w, rows)]
    if added.phi is not None:
        left = ~torch.isin(added.keys, kept.key)
        exact.append(added.exact_rows(anchor.w, left))
    moved = replace(moved, reach=round_up(leverage.reach), peak=round_up(leverage.peak), smallest=smallest)
    surrogate = change_surrogate(state.surrogate, predictor, anchor.w, removed.examples(), added.examples())
    at_hand = added.phi is not None or len(added.keys) == 0
    past = PastSums(anchor, state.regularizer) if at_hand else None
    return AnchoredModel(predictor, regularizer, moved, factor, tuple(exact), kept, rows, count, surrogate, past)


def changed_detail(predictor: Predictor, anchor: Anchor, removed: RowSums, added: RowSums) -> Detail | None:
    """The anchor's detail after the change."""
    detail = anchor.detail
    if detail is None:
        return None
    for sign, rows in ((-1, removed), (1, added)):
        for chunk in rows.examples():
            if len(chunk):
                of_rows = Detail.of_rows(predictor, anchor.w, predictor.features(chunk.x), predictor.weigh(chunk))
                detail = detail.plus(of_rows) if sign > 0 else detail.minus(of_rows)
    return detail.rounded()


@dataclass(frozen=True)
class RowSums:
    """Added or removed examples: their sums at the anchor and, if they are few, their features."""

    keys: Tensor
    loss: Loss
    phi: Tensor | None
    """(n, D); None if there are too many rows."""
    y: Tensor | None
    """(n, K)."""
    weight: Tensor | None
    """(n,) their weights; None if all are one, or if there are too many rows."""
    chunks: tuple[Data, ...]
    blur: float = 0.0
    """Bound of the error of the curvature, as a norm, because features were computed in another batch."""

    @classmethod
    def of(cls, predictor: Predictor, w: Tensor, data: Sequence[Data]) -> RowSums:
        keys, features, targets, weights, numbers = [torch.zeros(0, dtype=torch.long)], [], [], [], 0
        loss, blur = Loss(predictor, w, with_hessian=True, careful=True), 0.0
        for chunk in (c for some in data for c in require_rereadable(some) if len(c)):
            predictor.check(chunk)
            keys.append(chunk.key.cpu())
            phi, weight = predictor.features(chunk.x), predictor.weigh(chunk)
            y = chunk.y.to(phi)
            loss.add_encoded(phi, y, weight)
            off, bent = feature_blur(predictor, phi, y, w, weight)
            loss.rounding, blur = loss.rounding + off / (4 * EPSILON), blur + bent
            numbers += phi.numel()
            if numbers <= EXACT_NUMBERS:
                features.append(phi)
                targets.append(y)
                weights.append(torch.ones_like(phi[:, 0]) if weight is None else weight)
        if not features or numbers > EXACT_NUMBERS:
            return cls(torch.cat(keys), loss, None, None, None, tuple(data), blur)
        weight = torch.cat(weights)
        weigh = weight if bool((weight != 1).any()) else None
        return cls(torch.cat(keys), loss, torch.cat(features), torch.cat(targets), weigh, tuple(data), blur)

    def exact_rows(self, w: Tensor, some: Tensor) -> ExactRows:
        """The selected rows, relative to an anchor at w."""
        assert self.phi is not None
        assert self.y is not None
        phi, y = self.phi[some], self.y[some]
        weight = None if self.weight is None else self.weight[some]
        return ExactRows(phi, phi @ w.view(y.shape[1], -1).T, y, weight)

    @property
    def mass(self) -> float:
        """Their contribution to `Anchor.mass`, with the blur in its units."""
        unit = matrix_rounding(1.0, len(self.loss.hessian))
        return float(self.loss.hessian.diagonal().sum()) + self.blur / unit

    def examples(self) -> Iterator[Examples]:
        """The examples themselves, chunk by chunk."""
        return chunks_of(self.chunks)


def check_removed(state: State, removed: RowSums) -> None:
    """Check removed examples against the memory: others than those that the sums include would corrupt the sums."""
    if removed.phi is None or len(removed.keys) == 0:
        return
    remembered = torch.nonzero(torch.isin(removed.keys, state.memory.key))[:, 0]
    place = torch.searchsorted(state.memory.key, removed.keys[remembered])  # keys of a memory are in order
    f = removed.phi[remembered] @ state.anchor.w.view(state.predictor.family.outputs, -1).T
    soft = state.memory.soft[place].to(f)
    if not torch.allclose(state.predictor.family.mean(f), soft, rtol=1e-3, atol=1e-4):
        raise ValueError("A removed example differs from the one that the memory has under the same key.")


def shrinkage(state: State, regularizer: L2, removed: RowSums, H: Tensor, factor: Tensor) -> float:
    """The smallest t, or slightly more, for which H before the change is at most t times H after it.

    Squared lengths in the norm of H^-1 have grown by at most this factor. If the penalty stays and few examples are
    removed, it is one plus the largest eigenvalue of the removed curvature relative to the remaining one, computed from
    the Gram matrix of their rows.
    """
    predictor, anchor = state.predictor, state.anchor
    same = regularizer is state.regularizer
    if same and len(removed.keys) == 0:
        return 1.0
    small = removed.phi is not None and len(removed.keys) * predictor.family.outputs <= len(H) // 2
    if same and small:
        taken = torch.cat([ggn_rows(predictor, anchor.w, chunk.x, chunk.y) for chunk in removed.examples()])
        if removed.weight is not None:
            taken = taken * per_row(removed.weight.sqrt(), taken)
        white = torch.linalg.solve_triangular(factor, taken.T, upper=False)
        return 1 + float(torch.linalg.eigvalsh(white.T @ white)[-1])
    before = hessian_of(predictor, state.regularizer, anchor)
    half = torch.linalg.solve_triangular(factor, before, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.T.contiguous(), upper=False)
    return max(0.0, float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])) + 1e-12
