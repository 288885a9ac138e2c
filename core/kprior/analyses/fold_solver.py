"""The optima of a head without each fold, and with all rows, for one penalty after the other.

All optima move together: a pass computes the gradients at all of them by two matrix products per fold, in single
precision, and the same inverse Hessian takes the step. The optima for the previous penalty are the start. There, the
gradient is known without a pass: it is the change of the penalty's own gradient. Where penalties are weak, this first
step is all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.analyses.group_removals import BATCH_NUMBERS, MAX_STEPS, SLOW, Removals
from core.kprior.analyses.head import Head, HeadData
from core.kprior.analyses.head_curvature import HeadCurvature
from core.kprior.model.regularizers import L2

BLOCK_ROWS = 4_096
MAX_NUMBERS = 2**26
"""Features of all rows."""
MAX_OUTPUT = 100.0
"""The largest sum of |w_j phi_j| of a row: beyond it, outputs in single precision are not precise enough."""
STALE = 0.25
"""Smallest ratio of two steps at which the curvature is measured again."""


@dataclass(frozen=True)
class Block:
    """Rows of one fold, in single precision."""

    fold: int
    index: Tensor
    """(n,) their places in the data."""
    phi: Tensor
    y: Tensor
    weight: Tensor | None


class FoldSolver:
    """Finds the optima for one penalty after the other. The last of the F + 1 optima is that of all rows."""

    def __init__(self, head: Head, data: HeadData, fold: Tensor, folds: Sequence[int], stride: int) -> None:
        self.data, self.folds, self.stride = data, list(folds), stride
        self.blocks = split_rows(data, fold)
        self.W = head.w.expand(len(self.folds) + 1, -1).clone()
        self.distance = torch.full((len(self.W),), torch.inf, dtype=self.W.dtype)
        self.penalty: L2 | None = None
        self.curvature: HeadCurvature | None = None
        self.ratio = torch.inf

    def solve(self, head: Head, tolerance: float) -> Removals | None:
        """(F + 1, P) weights within the tolerance of the optima; None if they were not found."""
        if self.curvature is None or self.ratio > STALE:
            self.measure(head)
        assert self.curvature is not None
        scale = 1 - 0.5 / max(2, len(self.folds))  # between all rows and all but one fold
        inverse, W, last = self.curvature.scaled(scale).inverse(head), self.W, torch.full_like(self.distance, torch.inf)
        inherited, self.ratio = self.distance * W.norm(dim=1), 0.0
        known = self.penalty is not None and bool(torch.isfinite(inherited).all())
        active = torch.arange(len(W))
        for i in range(MAX_STEPS):
            if i == 0 and known and self.penalty is not None:
                gradient = head.regularizer.gradient(W) - self.penalty.gradient(W)
            else:
                gradient = self.gradients(head, active)
            step = -inverse.solve(gradient)
            size = step.norm(dim=1)
            ratio = torch.where(torch.isfinite(last[active]), size / last[active], SLOW)
            if i == 1 and known:  # the start may have been further from its own optimum than estimated
                ratio = ratio.clamp(max=SLOW)
            if not bool(step.isfinite().all()) or (i > 0 and bool((ratio > SLOW).any())):
                self.penalty = None
                return None
            self.ratio = max(self.ratio, float(ratio.max()) if i > 0 else 0.0)
            W[active] += step
            rest = size * ratio / (1 - ratio) + (inherited[active] if i == 0 and known else 0.0)
            last[active] = size + (inherited[active] if i == 0 and known else 0.0)
            self.distance[active] = rest / W[active].norm(dim=1).clamp(min=1e-300)
            active = active[self.distance[active] > tolerance]
            if len(active) == 0:
                self.penalty = head.regularizer
                return Removals(W.clone(), self.distance.clone())
            if i == 1 and self.ratio > STALE:
                self.measure(head)
                inverse = self.curvature.scaled(scale).inverse(head)
        self.penalty = None
        return None

    def measure(self, head: Head) -> None:
        self.curvature = HeadCurvature.measure(replace(head, w=self.W[-1].clone()), self.data, self.stride)

    def gradients(self, head: Head, wanted: Tensor) -> Tensor:
        """(S, P) the gradients of the objectives at some of the weights."""
        S, K = len(wanted), head.outputs
        short = self.W[wanted].view(S * K, -1).float()
        place = {self.folds[k]: i for i, k in enumerate(wanted.tolist()) if k < len(self.folds)}
        total = torch.zeros(S * K, short.shape[1], dtype=self.W.dtype)
        step = max(64, BATCH_NUMBERS // (S * K))
        for block in self.blocks:
            for part in (slice(start, start + step) for start in range(0, len(block.phi), step)):
                phi, y = block.phi[part], block.y[part]
                f, n = phi @ short.T, len(phi)
                if K > 1:
                    y, f = y[:, None].expand(n, S, K).reshape(n * S, K), f.view(n * S, K)
                r = head.family.residual(y, f).view(n, S, K)
                if block.weight is not None:
                    r = r * block.weight[part][:, None, None]
                if block.fold in place:
                    r[:, place[block.fold]] = 0.0
                total += r.view(n, S * K).T @ phi
        return total.view(S, -1) + head.regularizer.gradient(self.W[wanted])

    def predict(self, head: Head, outputs: Tensor) -> None:
        """Fill in what each fold's weights predict for the rows of the fold."""
        place = {k: i for i, k in enumerate(self.folds)}
        for block in self.blocks:
            if block.fold in place:
                w = self.W[place[block.fold]].view(head.outputs, -1).float()
                outputs[block.index] = (block.phi @ w.T).to(outputs)


def split_rows(data: HeadData, fold: Tensor) -> list[Block]:
    """The rows of each fold, in blocks."""
    blocks: list[Block] = []
    rows = list(data)
    phi, y = (torch.cat([getattr(some, name).float() for some in rows]) for name in ("phi", "y"))
    weight = None
    if any(some.weight is not None for some in rows):
        parts = [torch.ones(len(some)) if some.weight is None else some.weight.float() for some in rows]
        weight = torch.cat(parts)
    for k in fold.unique().tolist():
        for index in torch.nonzero(fold == k)[:, 0].split(BLOCK_ROWS):
            blocks.append(Block(k, index, phi[index], y[index], None if weight is None else weight[index]))
    return blocks


def fits_single_precision(head: Head, data: HeadData) -> bool:
    """Whether a copy of the rows fits in memory, and outputs in single precision are precise enough."""
    if not data.kept or sum(rows.phi.numel() for rows in data) > MAX_NUMBERS:
        return False
    size = head.w.view(head.outputs, -1).abs().T
    return all(bool((rows.phi.abs() @ size <= MAX_OUTPUT).all()) for rows in data)
