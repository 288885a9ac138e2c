"""Number of rows."""

import torch

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples
from core.kprior.passes.accumulator import ModelAccumulator


class Count(ModelAccumulator):
    """The number of rows; checks that each fits the model."""

    kind = "count"
    count = 0

    def add(self, chunk: Examples) -> None:
        self.predictor.check(chunk)
        self.count += len(chunk)

    def sums(self) -> Tensors:
        return {"count": torch.tensor(self.count)}

    def merge(self, sums: Tensors) -> None:
        self.count += int(sums["count"])
