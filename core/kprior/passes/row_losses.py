"""The loss of each single row, and whether its label is predicted: what audits and membership are made of."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import accumulate
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator

CHUNK_ROWS = 2_048


class RowLosses(ModelAccumulator):
    """One loss for each row, in the order of the rows, above the least that its target can have."""

    kind = "losses"
    options: ClassVar[tuple[str, ...]] = ("double",)

    def __init__(self, predictor: Predictor, w: Tensor, double: bool = False) -> None:
        """`double` computes losses in double precision, whatever the outputs have."""
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
        """(n,) whether the label is what the model predicts; never for numbers, which have no classes."""
        return torch.cat(self._right)

    @property
    def accuracy(self) -> float:
        """The share of rows whose label is predicted; zero for numbers, and of no rows."""
        return fraction_true(self.right)

    @torch.no_grad()
    def add(self, chunk: Examples) -> None:
        family, f = self.predictor.family, self.predictor.outputs(self.w, chunk.x)
        f = f.double() if self.double else f
        self._losses.append(family.excess(chunk.y.to(f), f).cpu())
        if family.name in ("categorical", "bernoulli"):
            self._right.append(family.decide(f).cpu() == classes_of(chunk.y).cpu())
        else:
            self._right.append(torch.zeros(len(chunk), dtype=torch.bool))

    def sums(self) -> Tensors:
        return {"losses": self.losses, "right": self.right}

    def merge(self, sums: Tensors) -> None:
        self._losses.append(sums["losses"])
        self._right.append(sums["right"])


def fraction_true(right: Tensor) -> float:
    """How many of (n,) are true, as a share; zero of none."""
    return int(right.sum()) / len(right) if len(right) else 0.0


def audit_rows(predictor: Predictor, w: Tensor, rows: Examples) -> RowLosses:
    """The losses of some rows in double precision, and which of their labels are predicted."""
    return accumulate(rows.chunks(CHUNK_ROWS), RowLosses(predictor, w, double=True))


def row_losses(predictor: Predictor, w: Tensor, data: Data) -> Tensor:
    """The loss of each example, above the least that its target can have.

    Returns
    -------
    Tensor
        (n,) in the predictor's precision.
    """
    return accumulate(data, RowLosses(predictor, w)).losses
