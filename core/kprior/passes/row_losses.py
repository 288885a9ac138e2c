"""The loss of each row, and whether its label is predicted, for audits and membership tests."""

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Data, Examples
from core.kprior.model.families import Labels, classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator
from core.kprior.passes.partitioned import accumulate

CHUNK_ROWS = 2_048


class RowLosses(ModelAccumulator):
    """One loss per row, in order, minus the minimum for its target."""

    kind = "losses"
    options: ClassVar[tuple[str, ...]] = ("double",)

    def __init__(self, predictor: Predictor, w: Tensor, double: bool = False) -> None:
        """`double` computes losses in float64, whatever the precision of the outputs."""
        super().__init__(predictor, w)
        self.double, self.work = double, 2.0 * predictor.size
        self._losses = [torch.zeros(0, dtype=torch.float64 if double else predictor.dtype)]
        self._right = [torch.zeros(0, dtype=torch.bool)]

    @property
    def losses(self) -> Tensor:
        """(n,)."""
        return torch.cat(self._losses)

    @property
    def right(self) -> Tensor:
        """(n,) whether the model predicts the label, or all labels; always false for numbers, which have no classes."""
        return torch.cat(self._right)

    @property
    def accuracy(self) -> float:
        """Fraction of rows whose label is predicted; zero for numbers and without rows."""
        return fraction_true(self.right)

    @torch.no_grad()
    def add(self, chunk: Examples) -> None:
        family, f = self.predictor.family, self.predictor.outputs(self.w, chunk.x)
        f = f.double() if self.double else f
        self._losses.append(family.excess(chunk.y.to(f), f).cpu())
        if isinstance(family, Labels):
            self._right.append(((f > 0) == (chunk.y.to(f) > 0.5)).all(1).cpu())
        elif family.name in ("categorical", "bernoulli"):
            self._right.append(family.decide(f).cpu() == classes_of(chunk.y).cpu())
        else:
            self._right.append(torch.zeros(len(chunk), dtype=torch.bool))

    def sums(self) -> Tensors:
        return {"losses": self.losses, "right": self.right}

    def merge(self, sums: Tensors) -> None:
        self._losses.append(sums["losses"])
        self._right.append(sums["right"])


def fraction_true(right: Tensor) -> float:
    """Fraction of (n,) that is true; zero if n is 0."""
    return int(right.sum()) / len(right) if len(right) else 0.0


def audit_rows(predictor: Predictor, w: Tensor, rows: Examples) -> RowLosses:
    """The losses of rows in float64, and which of their labels are predicted."""
    return accumulate(rows.chunks(CHUNK_ROWS), RowLosses(predictor, w, double=True))


def row_losses(predictor: Predictor, w: Tensor, data: Data) -> Tensor:
    """The loss of each example, minus the minimum for its target.

    Returns
    -------
    Tensor
        (n,) in the predictor's precision.
    """
    return accumulate(data, RowLosses(predictor, w)).losses
