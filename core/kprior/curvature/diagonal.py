"""The diagonal of the curvature, for models that the other backends do not support."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.curvature.base import Curvature, ggn_rows, per_row, row_chunks
from core.kprior.model.predictor import Predictor


class Diagonal(Curvature):
    """The diagonal of G."""

    kind = "diagonal"

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        return cls(torch.zeros(predictor.size, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        if predictor.linear:
            self.add_features(predictor, w, predictor.features(x), 1.0 if weight is None else weight)
            return
        step = row_chunks(predictor, len(x)).step
        for i in range(0, len(x), step):
            squares = ggn_rows(predictor, w, x[i : i + step]) ** 2
            self.diagonal += (squares if weight is None else squares * per_row(weight[i : i + step], squares)).sum(0)

    def add_features(self, predictor: Predictor, w: Tensor, phi: Tensor, weight: Tensor | float) -> None:
        """Add rows of a GLM by their features, without building its Jacobian, which is mostly zeros."""
        variance = predictor.family.variance(phi @ w.view(predictor.family.outputs, -1).T)
        variance = variance * (weight if isinstance(weight, float) else weight[:, None])
        step = max(16, 2**22 // phi.shape[1])  # squaring all rows at once would double the memory
        for i in range(0, len(phi), step):
            self.diagonal += (variance[i : i + step].T @ phi[i : i + step] ** 2).reshape(-1)

    def merge(self, other: Self) -> None:
        self.diagonal += other.diagonal

    def product(self, v: Tensor) -> Tensor:
        return self.diagonal * v

    def clip(self) -> None:
        self.diagonal.clamp_(min=0)

    def inverse(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        whole = (self.diagonal + delta).clamp(min=1e-30)
        return lambda v: (v / whole).to(v)

    def tensors(self) -> dict[str, Tensor]:
        return {"diagonal": self.diagonal}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["diagonal"])
