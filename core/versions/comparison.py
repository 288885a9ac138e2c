"""Comparing two versions: the metrics of each on the same rows, and how far they are apart."""

from __future__ import annotations

import math
from typing import Any, Self

import torch

from core.kprior import Data, Examples, State
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.partitioned import accumulate
from core.kprior.model.spec import loss_of
from core.kprior.passes.accumulator import Combined
from core.versions.evaluation import Evaluation, Mean, weights_of

MIN_STANDARD_ERRORS = 2.0
"""A difference of fewer standard errors than this is put down to chance."""
MIN_ROWS = 20
"""With fewer rows, no difference can be told from chance."""


class PairedEvaluation(Combined):
    """Metrics of two versions' predictions for the same rows, accumulated chunk by chunk."""

    kind = "paired-evaluation"

    def __init__(self, one: State, other: State) -> None:
        self.one, self.other = Evaluation(one), Evaluation(other)
        super().__init__(self.one, self.other)
        self._apart, self._y = Mean(), Mean()
        self._differences = {name: Mean() for name in ("loss", *(["accuracy"] if self.one.classifies else []))}
        self._largest = 0.0
        self.alike = loss_of(one.spec) == loss_of(other.spec)
        """Whether losses, and predictions, are in the same units."""

    def empty(self) -> Self:
        return type(self)(self.one.state, self.other.state)

    def add(self, chunk: Examples) -> None:
        x, y, v = chunk.x, chunk.y, weights_of(chunk)
        (f, a), (g, b) = self.one.predict(x), self.other.predict(x)
        left, right = self.one.add_predictions(f, a, y, v), self.other.add_predictions(g, b, y, v)
        self.one.add_levels(chunk, f, v)
        self.other.add_levels(chunk, g, v)
        for name, mean in self._differences.items():
            mean.add(left[name].double() - right[name].double(), v)
        self._raise_to(float((a - b).abs().max()))
        if self.one.classifies:
            self._apart.add(torch.from_numpy(self.one.choose(a) != self.other.choose(b)), v)
        else:
            self._apart.add(((a - b).double() ** 2).sum(1).cpu(), v)
            self._y.add(y[:, 0].cpu(), v)

    def _raise_to(self, largest: float) -> None:
        self._largest = largest if math.isnan(largest) else max(self._largest, largest)

    def sums(self) -> Tensors:
        means = {"apart": self._apart.sums(), "y": self._y.sums()}
        means |= join_groups({"difference": {name: mean.sums() for name, mean in self._differences.items()}})
        return super().sums() | means | {"largest": torch.tensor(self._largest, dtype=torch.float64)}

    def merge(self, sums: Tensors) -> None:
        super().merge(sums)
        self._apart.merge(sums["apart"])
        self._y.merge(sums["y"])
        for name, mean in self._differences.items():
            mean.merge(sums[f"difference.{name}"])
        self._raise_to(float(sums["largest"]))

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        one, other = (Evaluation.from_config({}, take_group(tensors, side), device).state for side in ("0", "1"))
        return cls(one, other)

    @property
    def disagreement(self) -> float | None:
        """How far the predictions differ: the fraction of rows that they put in different classes.

        For numbers and counts: the root mean square of the difference, relative to the targets' standard deviation.
        None without rows, or if a prediction is not a finite number.
        """
        if self._apart.count == 0:
            return None
        if self.one.classifies:
            return self._apart.value
        if not math.isfinite(self._apart.value) or not self._y.variance > 0:
            return 0.0 if self._apart.value == 0 else None
        return math.sqrt(self._apart.value / self._y.variance)

    @property
    def largest(self) -> float | None:
        """The largest difference of any prediction: of probabilities, or of means. None without rows."""
        told = self.one.count and math.isfinite(self._largest) and self.one.scores == self.other.scores
        return self._largest if told else None

    @property
    def worse(self) -> str | None:
        """The metric in which the second version is worse than the first, beyond chance.

        A paired test: the mean of the rows' differences against its standard error. The loss decides, and the accuracy
        where the losses are equal, as far as anybody knows, or of different kinds. None also if there are too few rows
        to tell.
        """
        if self.one.count < MIN_ROWS:
            return None
        if self.alike and "loss" in self.one.metrics and "loss" not in self.other.metrics:
            return "loss"  # which is not finite
        loss, accuracy = self._differences["loss"], self._differences.get("accuracy")
        if self.alike and not abs(loss.value) <= MIN_STANDARD_ERRORS * loss.error:
            return "loss" if loss.value < 0 else None
        return "accuracy" if accuracy is not None and accuracy.value > MIN_STANDARD_ERRORS * accuracy.error else None

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors: of the disagreement, and of the differences between the two versions' figures.

        The rows are the same on both sides, so a difference is known better than either side of it.
        """
        found = {name: mean.error for name, mean in self._differences.items()}
        apart = self.disagreement
        if apart is not None:
            # of a root: the error of the square, over twice the root
            scale = 1.0 if self.one.classifies else 2 * apart * self._y.variance
            found["disagreement"] = self._apart.error / scale if apart else 0.0
        return {name: value for name, value in found.items() if math.isfinite(value)}


def compare(one: State, other: State, data: Data) -> PairedEvaluation:
    """Compare two versions in one pass."""
    return accumulate(data, PairedEvaluation(one, other))


def weight_distance(one: State, other: State) -> float | None:
    """|w - w'|; None where weights do not mean the same: networks, or models of different architectures."""
    if not one.predictor.linear or one.predictor.spec != other.predictor.spec:
        return None
    return float((one.w - other.w).norm())
