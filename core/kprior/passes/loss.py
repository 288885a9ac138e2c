"""The loss of rows at given weights, its gradient and, for GLMs, its Hessian, for solvers and certificates."""

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.curvature import glm_hessian
from core.kprior.curvature.leaf_sums import leaf_hessian
from core.kprior.data.codec import Tensors
from core.kprior.data.examples import EncodedExamples, Examples
from core.kprior.data.leaf_rows import leaf_rows
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import LeafRows
from core.kprior.passes.accumulator import ModelAccumulator
from core.kprior.passes.rounding_error import gradient_rounding, leaf_rounding

BACKWARD_ROWS = 512
"""Rows of a network whose gradient is computed at once: the activations of all layers are kept for it, and those of a
few thousand images took gigabytes."""


class Loss(ModelAccumulator):
    """Sums over rows at the weights w: their number, loss and gradient, and optionally more."""

    kind = "loss"
    options: ClassVar[tuple[str, ...]] = ("with_hessian", "careful")
    tensor_options: ClassVar[tuple[str, ...]] = ("origin",)

    def __init__(
        self,
        predictor: Predictor,
        w: Tensor,
        *,
        with_hessian: bool = False,
        careful: bool = False,
        origin: Tensor | None = None,
    ) -> None:
        """For GLMs, `careful` bounds the rounding error of the gradient, and `origin` records how far any row's outputs
        are from those at the weights `origin`.
        """
        super().__init__(predictor, w)
        self.with_hessian, self.careful, self.origin = with_hessian, careful, origin
        self.count = 0
        self.value = self.rounding = self.spread = 0.0
        self.gradient = torch.zeros_like(w)
        """(P,)."""
        size = predictor.size if with_hessian else 0
        self.hessian = torch.zeros(size, size, dtype=w.dtype, device=w.device)
        """(P, P), or (0, 0) if it was not requested."""
        self.work = 6.0 * predictor.size + with_hessian * predictor.size**2 / 2 + predictor.family.outputs

    def add(self, chunk: Examples) -> None:
        if isinstance(chunk, EncodedExamples):
            if (leaves := leaf_rows(self.predictor, chunk)) is not None:
                self.add_leaves(leaves, chunk.y.to(self.w), chunk.weight)
                return
            self.add_encoded(chunk.x, chunk.y, chunk.weight)
            return
        self.predictor.check(chunk)
        if (leaves := leaf_rows(self.predictor, chunk)) is not None:
            self.add_leaves(leaves, chunk.y.to(self.w), self.predictor.weigh(chunk))
            return
        z = self.predictor.features(chunk.x) if self.predictor.linear else self.predictor.encode(chunk.x)
        self.add_encoded(z, chunk.y.to(z), self.predictor.weigh(chunk))

    def add_encoded(self, z: Tensor, targets: Tensor, weight: Tensor | None = None) -> None:
        """Add encoded rows (features for GLMs) with their weights."""
        self.count += len(z)
        family = self.predictor.family
        if not self.predictor.linear:
            w = self.w.detach().requires_grad_()
            for start in range(0, len(z), BACKWARD_ROWS):
                some = slice(start, start + BACKWARD_ROWS)
                loss = family.loss(targets[some], self.predictor.outputs_of_encoded(w, z[some]))
                total = (loss if weight is None else loss * weight[some]).sum()
                self.gradient = self.gradient + torch.autograd.grad(total, w)[0]
                self.value += float(total.detach())
            return
        f = z @ self.w.view(family.outputs, -1).T
        loss = family.loss(targets, f)
        residual = family.residual(targets, f)
        if weight is not None:
            loss, residual = loss * weight, residual * weight[:, None]
        self.value += float(loss.sum())
        self.gradient = self.gradient + (residual.T @ z).reshape(-1)
        if self.with_hessian:
            self.hessian += glm_hessian(z, family, f, weight, targets)
        if self.careful:
            self.rounding += gradient_rounding(self.predictor, z, f, targets, self.w, weight)
        if self.origin is not None:
            change = z @ (self.w - self.origin).view(family.outputs, -1).T
            self.spread = max(self.spread, float(family.spread(change).max()))

    def add_leaves(self, rows: LeafRows, targets: Tensor, weight: Tensor | None = None) -> None:
        """Add rows of a tree ensemble; as `add_encoded`, without their features."""
        family, W = self.predictor.family, self.w.view(self.predictor.family.outputs, -1)
        if self.with_hessian and family.outputs > 1:
            self.add_encoded(rows.features().to(self.w), targets, weight)
            return
        self.count += len(rows)
        f = rows.outputs(W)
        loss, residual = family.loss(targets, f), family.residual(targets, f)
        if weight is not None:
            weight = weight.to(f)
            loss, residual = loss * weight, residual * weight[:, None]
        self.value += float(loss.sum())
        self.gradient = self.gradient + rows.pull(residual).reshape(-1)
        if self.with_hessian:
            variance = family.curvature(targets, f)[:, 0]
            self.hessian += leaf_hessian(rows, variance if weight is None else variance * weight)
        if self.careful:
            self.rounding += leaf_rounding(self.predictor, rows, f, targets, self.w, weight)
        if self.origin is not None:
            change = rows.outputs((self.w - self.origin).view(family.outputs, -1))
            self.spread = max(self.spread, float(family.spread(change).max()))

    def sums(self) -> Tensors:
        scalars = torch.tensor([self.value, self.rounding, self.spread], dtype=torch.float64)
        count = torch.tensor(self.count)
        return {"count": count, "scalars": scalars, "gradient": self.gradient, "hessian": self.hessian}

    def merge(self, sums: Tensors) -> None:
        value, rounding, spread = sums["scalars"].tolist()
        self.count += int(sums["count"])
        self.value, self.rounding = self.value + value, self.rounding + rounding
        self.spread = max(self.spread, spread)
        self.gradient = self.gradient + sums["gradient"].to(self.gradient)
        self.hessian += sums["hessian"].to(self.hessian)
