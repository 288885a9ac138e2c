"""How good a version is: figures of its predictions on the holdout, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior import Data, Examples, State
from core.kprior.data.codec import Tensors
from core.kprior.data.partitioned import accumulate
from core.kprior.passes.accumulator import Accumulator, Combined
from core.tables.figures import EvaluationFigures, ReliabilityBin

BINS = 10
MOST_CLASSES = 50
"""More cannot be read off a confusion matrix, and of thousands it would be hundreds of megabytes."""


class Mean:
    """A mean of numbers that come chunk by chunk, each by its weight, and its standard error."""

    def __init__(self) -> None:
        self.count, self.value, self._squares = 0, 0.0, 0.0
        self._weight = self._weight_squares = 0.0

    def add(self, values: Tensor, weight: Tensor) -> None:
        """Take the next numbers (Chan, Golub & LeVeque 1979: squares of large numbers would leave no digits)."""
        values, total = values.double(), float(weight.sum())
        mean = float((weight * values).sum()) / total
        squares, weight_squares = float((weight * (values - mean) ** 2).sum()), float((weight**2).sum())
        self._add(len(values), total, weight_squares, mean, squares)

    def _add(self, many: int, weight: float, weight_squares: float, mean: float, squares: float) -> None:
        if many == 0:
            return
        apart, total = mean - self.value, self._weight + weight
        self._squares += squares + apart**2 * self._weight * weight / total
        self.value += apart * weight / total
        self.count += many
        self._weight, self._weight_squares = total, self._weight_squares + weight_squares

    def sums(self) -> Tensor:
        """(5,): all of it, for `merge`."""
        weights = (self._weight, self._weight_squares)
        return torch.tensor([self.count, *weights, self.value, self._squares], dtype=torch.float64)

    def merge(self, sums: Tensor) -> None:
        """Take the numbers that came elsewhere."""
        many, *others = sums.tolist()
        self._add(int(many), *others)

    @property
    def variance(self) -> float:
        return self._squares / self._weight if self.count else math.nan

    @property
    def independent(self) -> float:
        """As many numbers of the same weight would say as much: (sum v)^2 / sum v^2 (Kish 1965)."""
        return self._weight**2 / self._weight_squares if self.count else 0.0

    @property
    def error(self) -> float:
        """The standard error: how far, by chance, it may be from the mean of all that could have come."""
        return math.sqrt(self.variance / self.independent) if self.count else math.nan


class Evaluation(Accumulator):
    """Figures of one version's predictions, added up chunk by chunk."""

    kind = "evaluation"

    def __init__(self, state: State) -> None:
        self.state = state
        self.target: str = state.spec["target"]["kind"]
        self.classifies = self.target in ("binary", "classes")
        self.work = 2.0 * state.predictor.size
        classes = max(2, state.predictor.family.outputs)
        self._loss, self._square, self._right = Mean(), Mean(), Mean()
        self._confusion = np.zeros((classes, classes), np.int64) if classes <= MOST_CLASSES else None
        self._bins = np.zeros((BINS, 4))
        """Of each bin: sums of confidences, of those that were right, of all, by their weights; how many there are."""

    @property
    def count(self) -> int:
        return self._loss.count

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs f and means h(f)."""
        with torch.inference_mode():
            f = self.state.predictor.outputs(self.state.w, x)
            return f, self.state.predictor.family.mean(f)

    def add(self, chunk: Examples) -> None:
        self.add_predictions(*self.predict(chunk.x), chunk.y, weights_of(chunk))

    def add_predictions(self, f: Tensor, mean: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Take the predictions for a chunk of examples; what each example adds to the means among the metrics."""
        y = y.to(f)
        loss = self.state.predictor.family.loss(y, f).double()
        if self.target == "count":  # the least that a count of y can cost; of the others it is 0
            loss = loss - (y - torch.xlogy(y, y)).double().sum(1)
        loss = loss.cpu()
        self._loss.add(loss, weight)
        if not self.classifies:
            self._square.add(((mean - y).double() ** 2).sum(1).cpu(), weight)
            return {"loss": loss}
        guess, truth = choices(mean), choices(y)
        hits = torch.from_numpy(truth == guess)
        self._right.add(hits, weight)
        if self._confusion is not None:
            np.add.at(self._confusion, (truth, guess), 1)
        # of two classes: how often it is the second; of more: how often the likeliest is right
        if self.target == "binary":
            confidence, right = mean[:, 0].double().cpu().numpy(), truth == 1
        else:
            confidence, right = mean.max(1).values.double().cpu().numpy(), truth == guess
        confidence = np.nan_to_num(confidence)  # an input so extreme that the model has no answer
        place = np.minimum((confidence * BINS).astype(int), BINS - 1)
        v = weight.numpy()
        np.add.at(self._bins, place, np.stack([confidence * v, right * v, v, np.ones(len(y))], 1))
        return {"loss": loss, "accuracy": hits}

    def empty(self) -> Self:
        return type(self)(self.state)

    def sums(self) -> Tensors:
        found = {"loss": self._loss.sums(), "square": self._square.sums(), "right": self._right.sums()}
        found["bins"] = torch.from_numpy(self._bins)
        return found if self._confusion is None else {**found, "confusion": torch.from_numpy(self._confusion)}

    def merge(self, sums: Tensors) -> None:
        self._loss.merge(sums["loss"])
        self._square.merge(sums["square"])
        self._right.merge(sums["right"])
        self._bins += sums["bins"].numpy()
        if self._confusion is not None:
            self._confusion += sums["confusion"].numpy()

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        return {}, {"state": torch.frombuffer(bytearray(self.state.to_bytes()), dtype=torch.uint8)}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        return cls(State.from_bytes(tensors["state"].numpy().tobytes(), device))

    @property
    def metrics(self) -> dict[str, float]:
        """accuracy and calibration of classes, rmse of numbers, and the loss: 0 for a model that is certain and right.

        The loss is the log loss of classes, half the squared error of numbers, half the deviance of counts;
        calibration is the expected calibration error. Rows count by their weights, as scikit-learn's `sample_weight`
        has it; those of classes do not. `rows` is on how many it is measured, and what ends in `_se` the standard error
        of a figure.
        """
        if self.count == 0:
            return {}
        found: dict[str, float] = {"rows": self.count, "loss": self._loss.value, "loss_se": self._loss.error}
        if self.classifies:
            found |= {"accuracy": self._right.value, "accuracy_se": self._right.error}
            found["calibration"] = float(np.abs(self._bins[:, 0] - self._bins[:, 1]).sum() / self._bins[:, 2].sum())
        else:
            root = math.sqrt(self._square.value)
            found |= {"rmse": root, "rmse_se": self._square.error / (2 * root) if root else 0.0}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def drawn(self) -> EvaluationFigures:
        """What a picture of the predictions needs: confusion by class, in rows; reliability by confidence."""
        if not self.classifies or self.count == 0:
            return {}
        sums = self._bins[self._bins[:, 2] > 0]
        reliability: list[ReliabilityBin] = [
            {"confidence": c / v, "accuracy": r / v, "count": int(n)} for c, r, v, n in sums.tolist()
        ]
        confusion = None if self._confusion is None else self._confusion.tolist()
        return {"confusion": confusion, "reliability": reliability}


def weights_of(chunk: Examples) -> Tensor:
    """(n,) how many times each row counts."""
    return torch.ones(len(chunk), dtype=torch.float64) if chunk.weight is None else chunk.weight.double().cpu()


def choices(mean: Tensor) -> NDArray[np.int64]:
    """The likeliest class of each row."""
    chosen = mean[:, 0] > 0.5 if mean.shape[1] == 1 else mean.argmax(1)
    made: NDArray[np.int64] = chosen.long().cpu().numpy()
    return made


def evaluate(states: Sequence[State], holdout: Data) -> list[Evaluation]:
    """Figures of several versions, in one pass."""
    made = [Evaluation(state) for state in states]
    accumulate(holdout, Combined(*made))
    return made
