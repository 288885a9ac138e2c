"""Comparing two versions: the metrics of each on the same rows, and how far their predictions differ."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from core.kprior import Data, Examples, State
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.model.spec import loss_of
from core.kprior.model.tree_splits import LeafEncoder
from core.kprior.passes.accumulator import Combined
from core.kprior.passes.moments import MIN_COUNT, Moments
from core.kprior.passes.partitioned import accumulate
from core.quality.evaluation import Evaluation
from core.quality.scored_rows import Metric, MetricOptions
from core.quality.scoring import DEFAULTS, predict, weights_of

MIN_STANDARD_ERRORS = 2.0
"""Differences of fewer standard errors are attributed to chance."""
MIN_ROWS = 20
"""With fewer rows, no difference is significant."""


class Mean:
    """A weighted mean that is accumulated chunk by chunk, and its standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = Moments([0, 1])
        """Moments with the weights, and with their squares."""

    def add(self, values: Tensor, weight: Tensor) -> None:
        """Add numbers."""
        self.count += len(values)
        values, weight = values.double(), weight.double()
        v = torch.stack([weight, weight**2])
        total = v.sum(1)
        mean = v @ values / total.clamp(min=MIN_COUNT)
        square = (v * (values - mean[:, None]) ** 2).sum(1)
        self._moments.merge({"count": total, "mean": mean, "square": square})

    def sums(self) -> Tensor:
        """(7,) the complete state, for `merge`."""
        return torch.cat([torch.tensor([self.count], dtype=torch.float64), *self._moments.sums().values()])

    def merge(self, sums: Tensor) -> None:
        """Add the numbers of another accumulator."""
        self.count += int(sums[0])
        self._moments.merge(dict(zip(self._moments.sums(), sums[1:].view(3, 2), strict=True)))

    @property
    def value(self) -> float:
        return float(self._moments.mean[0])

    @property
    def weight(self) -> float:
        return float(self._moments.count[0])

    @property
    def variance(self) -> float:
        return float(self._moments.square[0]) / self.weight if self.count else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean.

        sqrt(sum v^2 (x - mean)^2) / sum v, which is at least the contribution of any single number.
        """
        if not self.count:
            return math.nan
        moments = self._moments
        squares = moments.square[1] + moments.count[1] * (moments.mean[1] - moments.mean[0]) ** 2
        return math.sqrt(float(squares)) / self.weight


class PairedEvaluation(Combined):
    """Metrics of two versions' predictions for the same rows, accumulated chunk by chunk."""

    kind = "paired-evaluation"

    def __init__(self, one: State, other: State, options: MetricOptions = DEFAULTS) -> None:
        self.one, self.other = Evaluation(one, options), Evaluation(other, options)
        super().__init__(self.one, self.other)
        self._apart, self._y = Mean(), Mean()
        names: tuple[Metric, ...] = ("loss", "accuracy") if self.one.classifies else ("loss",)
        self._differences = {name: Mean() for name in names}
        self._largest = 0.0
        self.alike = loss_of(one.spec) == loss_of(other.spec)
        """Whether the losses, and so the predictions, have the same units."""

    def empty(self) -> Self:
        return type(self)(self.one.state, self.other.state, self.one.options)

    def add(self, chunk: Examples) -> None:
        x, y, v = chunk.x, chunk.y, weights_of(chunk)
        (f, a), (g, b) = predict(self.one.state, x), predict(self.other.state, x)
        left, right = self.one.add_predictions(f, a, y, v), self.other.add_predictions(g, b, y, v)
        self.one.add_levels(chunk, f, v)
        self.other.add_levels(chunk, g, v)
        for name, mean in self._differences.items():
            mean.add(torch.from_numpy(left.per_row(name) - right.per_row(name)), v)
        self._raise_to(float((a - b).abs().max()))
        if self.one.classifies:
            self._apart.add(torch.from_numpy(left.predicted != right.predicted), v)
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
        one, other = (Evaluation.from_config({}, take_group(tensors, side), device) for side in ("0", "1"))
        return cls(one.state, other.state, one.options)

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
        """The largest difference of any prediction, in probabilities or means. None without rows."""
        comparable = self.one.count and math.isfinite(self._largest) and self.one.scores == self.other.scores
        return self._largest if comparable else None

    @property
    def worse(self) -> str | None:
        """The metric in which the second version is worse than the first, beyond chance.

        A paired test: the mean of the rows' differences against its standard error. The loss decides; if the losses do
        not differ significantly, or are of different kinds, the accuracy does. None also if there are too few rows.
        """
        if self.one.count < MIN_ROWS:
            return None
        if self.alike and "loss" in self.one.metrics and "loss" not in self.other.metrics:
            return "loss"  # the loss of the second is not finite
        loss, accuracy = self._differences["loss"], self._differences.get("accuracy")
        if self.alike and not abs(loss.value) <= MIN_STANDARD_ERRORS * loss.error:
            return "loss" if loss.value < 0 else None
        return "accuracy" if accuracy is not None and accuracy.value > MIN_STANDARD_ERRORS * accuracy.error else None

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors of the disagreement and of the differences between the two versions' metrics.

        Both versions are evaluated on the same rows, so a difference has a smaller standard error than either metric.
        """
        errors: dict[str, float] = {name: mean.error for name, mean in self._differences.items()}
        apart = self.disagreement
        if apart is not None:
            # the error of a root is the error of the square divided by twice the root
            scale = 1.0 if self.one.classifies else 2 * apart * self._y.variance
            errors["disagreement"] = self._apart.error / scale if apart else 0.0
        return {name: value for name, value in errors.items() if math.isfinite(value)}


def compare(one: State, other: State, data: Data, options: MetricOptions = DEFAULTS) -> PairedEvaluation:
    """Compare two versions in one pass."""
    return accumulate(data, PairedEvaluation(one, other, options))


def weight_distance(one: State, other: State) -> float | None:
    """|w - w'|; None for networks and for models of different specs or splits, whose weights are not comparable."""
    if not one.predictor.linear or one.predictor.spec != other.predictor.spec or not same_splits(one, other):
        return None
    return float((one.w - other.w).norm())


def same_splits(one: State, other: State) -> bool:
    """Whether two versions have the same splits, or none."""
    ours, theirs = one.predictor.encoder, other.predictor.encoder
    if not isinstance(ours, LeafEncoder) or not isinstance(theirs, LeafEncoder):
        return True
    return all(torch.equal(a, b) for a, b in zip(ours.splits(), theirs.splits(), strict=True))
