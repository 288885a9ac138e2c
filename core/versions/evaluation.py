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
from core.versions.scores import area_under_curve, explained, f1_score

BINS = 10
MOST_CLASSES = 50
"""More cannot be read off a confusion matrix, and of thousands it would be hundreds of megabytes."""


class Mean:
    """A mean of numbers that come chunk by chunk, and its standard error."""

    def __init__(self) -> None:
        self.count, self.value, self._squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        """Take the next numbers (Chan, Golub & LeVeque 1979: squares of large numbers would leave no digits)."""
        values = values.double()
        mean = float(values.mean())
        self._add(len(values), mean, float(((values - mean) ** 2).sum()))

    def _add(self, many: int, mean: float, squares: float) -> None:
        if many == 0:
            return
        apart, count = mean - self.value, self.count + many
        self._squares += squares + apart**2 * self.count * many / count
        self.value += apart * many / count
        self.count = count

    def sums(self) -> Tensor:
        """(3,): all of it, for `merge`."""
        return torch.tensor([self.count, self.value, self._squares], dtype=torch.float64)

    def merge(self, sums: Tensor) -> None:
        """Take the numbers that came elsewhere."""
        many, mean, squares = sums.tolist()
        self._add(int(many), mean, squares)

    @property
    def variance(self) -> float:
        return self._squares / self.count if self.count else math.nan

    @property
    def error(self) -> float:
        """The standard error: how far, by chance, it may be from the mean of all that could have come."""
        return math.sqrt(self.variance / self.count) if self.count else math.nan


class Evaluation(Accumulator):
    """Figures of one version's predictions, added up chunk by chunk."""

    kind = "evaluation"

    def __init__(self, state: State) -> None:
        self.state = state
        self.target: str = state.spec["target"]["kind"]
        self.classifies = self.target in ("binary", "classes")
        self.work = 2.0 * state.predictor.size
        classes = max(2, state.predictor.family.outputs)
        self._loss, self._square = Mean(), Mean()
        self._right = 0
        self._classes = np.zeros((3, classes), np.int64)
        """Of each class: how often it was predicted rightly, how often it was predicted, how often it was there."""
        self._rows: list[Tensor] = []
        """(n, 2) each: predicted mean and truth, of targets that are one number. There are some 20 000 rows."""
        self._confusion = np.zeros((classes, classes), np.int64) if classes <= MOST_CLASSES else None
        self._bins = np.zeros((BINS, 3))
        """Of each bin: sum of confidences, how often they were right, how many."""

    @property
    def count(self) -> int:
        return self._loss.count

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs f and means h(f)."""
        with torch.inference_mode():
            f = self.state.predictor.outputs(self.state.w, x)
            return f, self.state.predictor.family.mean(f)

    def add(self, chunk: Examples) -> None:
        self.add_predictions(*self.predict(chunk.x), chunk.y)

    def add_predictions(self, f: Tensor, mean: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Take the predictions for a chunk of examples; what each example adds to the means among the metrics."""
        y = y.to(f)
        loss = self.state.predictor.family.loss(y, f).double()
        if self.target == "count":  # the least that a count of y can cost; of the others it is 0
            loss = loss - (y - torch.xlogy(y, y)).double().sum(1)
        self._loss.add(loss)
        if self.target != "classes":
            self._rows.append(torch.stack([mean[:, 0].double(), y[:, 0].double()], 1).cpu())
        if not self.classifies:
            self._square.add(((mean - y).double() ** 2).sum(1))
            return {"loss": loss}
        guess, truth = choices(mean), choices(y)
        self._right += int((truth == guess).sum())
        for row, classes in zip(self._classes, (truth[truth == guess], guess, truth), strict=True):
            row += np.bincount(classes, minlength=len(row))
        if self._confusion is not None:
            np.add.at(self._confusion, (truth, guess), 1)
        # of two classes: how often it is the second; of more: how often the likeliest is right
        if self.target == "binary":
            confidence, right = mean[:, 0].double().cpu().numpy(), truth == 1
        else:
            confidence, right = mean.max(1).values.double().cpu().numpy(), truth == guess
        confidence = np.nan_to_num(confidence)  # an input so extreme that the model has no answer
        place = np.minimum((confidence * BINS).astype(int), BINS - 1)
        np.add.at(self._bins, place, np.stack([confidence, right, np.ones(len(y))], 1))
        return {"loss": loss, "accuracy": torch.from_numpy(truth == guess)}

    def empty(self) -> Self:
        return type(self)(self.state)

    def sums(self) -> Tensors:
        found = {"loss": self._loss.sums(), "square": self._square.sums(), "right": torch.tensor(self._right)}
        found |= {"bins": torch.from_numpy(self._bins), "classes": torch.from_numpy(self._classes)}
        found["rows"] = self.rows()
        return found if self._confusion is None else {**found, "confusion": torch.from_numpy(self._confusion)}

    def merge(self, sums: Tensors) -> None:
        self._loss.merge(sums["loss"])
        self._square.merge(sums["square"])
        self._right += int(sums["right"])
        self._bins += sums["bins"].numpy()
        self._classes += sums["classes"].numpy()
        self._rows.append(sums["rows"])
        if self._confusion is not None:
            self._confusion += sums["confusion"].numpy()

    def rows(self) -> Tensor:
        """(n, 2): predicted mean and truth of all rows."""
        return torch.cat(self._rows) if self._rows else torch.zeros(0, 2, dtype=torch.float64)

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        return {}, {"state": torch.frombuffer(bytearray(self.state.to_bytes()), dtype=torch.uint8)}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        return cls(State.from_bytes(tensors["state"].numpy().tobytes(), device))

    @property
    def metrics(self) -> dict[str, float]:
        """accuracy, calibration and f1 of classes, auc of yes/no, rmse and r2 of numbers, and the loss: 0 for a model
        that is certain and right.

        The loss is the log loss of classes, half the squared error of numbers, half the deviance of counts;
        calibration is the expected calibration error; f1 is that of yes, or the mean over the classes. What begins
        with `baseline_` is what the best constant answer would get on the same rows: the commonest class, or the mean.
        `rows` is on how many it is measured, and what ends in `_se` the standard error of a figure.
        """
        if self.count == 0:
            return {}
        found: dict[str, float] = {"rows": self.count, "loss": self._loss.value, "loss_se": self._loss.error}
        if self.classifies:
            right = self._right / self.count
            found |= {"accuracy": right, "accuracy_se": math.sqrt(right * (1 - right) / self.count)}
            found["calibration"] = float(np.abs(self._bins[:, 0] - self._bins[:, 1]).sum()) / self.count
            matched, predicted, actual = self._classes[:, 1:] if self.target == "binary" else self._classes
            found |= f1_score(matched, predicted, actual, None if self.target == "binary" else self._confusion)
            found["baseline_accuracy"] = int(self._classes[2].max()) / self.count
        else:
            root = math.sqrt(self._square.value)
            found |= {"rmse": root, "rmse_se": self._square.error / (2 * root) if root else 0.0}
        if self.target != "classes":
            mean, y = np.nan_to_num(self.rows().numpy()).T
            found |= area_under_curve(mean, y > 0.5) if self.classifies else explained(mean, y)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def drawn(self) -> EvaluationFigures:
        """What a picture of the predictions needs: confusion by class, reliability by confidence."""
        if not self.classifies or self.count == 0:
            return {}
        sums = self._bins[self._bins[:, 2] > 0]
        reliability: list[ReliabilityBin] = [
            {"confidence": c / n, "accuracy": r / n, "count": int(n)} for c, r, n in sums.tolist()
        ]
        confusion = None if self._confusion is None else self._confusion.tolist()
        return {"confusion": confusion, "reliability": reliability}


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
