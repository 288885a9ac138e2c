"""How good a version is: figures of its predictions on the holdout, and of two versions next to each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior import Data, State

BINS = 10
MOST_CLASSES = 50
"""More cannot be read off a confusion matrix."""


class Evaluation:
    """Figures of one version's predictions, gathered chunk by chunk."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.kind: str = state.spec["target"]["kind"]
        self.classifies = self.kind in ("binary", "classes")
        classes = max(2, state.predictor.family.outputs)
        self.count = 0
        self._loss = self._squares = 0.0
        self._confusion = np.zeros((classes, classes), np.int64)
        self._bins = np.zeros((BINS, 3))
        """Of each bin: sum of confidences, how often they were right, how many."""

    def predicted(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs f and means h(f)."""
        with torch.inference_mode():
            f = self.state.predictor.outputs(self.state.w, x)
            return f, self.state.predictor.family.mean(f)

    def add(self, f: Tensor, mean: Tensor, y: Tensor) -> None:
        """Take the predictions for a chunk of examples."""
        y = y.to(f)
        self.count += len(y)
        loss = self.state.predictor.family.loss(y, f).double()
        if self.kind == "count":  # the least that a count of y can cost; of the others it is 0
            loss = loss - (y - torch.xlogy(y, y)).double().sum(1)
        self._loss += float(loss.sum())
        if not self.classifies:
            self._squares += float(((mean - y).double() ** 2).sum())
            return
        guess, truth = choices(mean), choices(y)
        np.add.at(self._confusion, (truth, guess), 1)
        # of two classes: how often it is the second; of more: how often the likeliest is right
        if self.kind == "binary":
            confidence, right = mean[:, 0].double().cpu().numpy(), truth == 1
        else:
            confidence, right = mean.max(1).values.double().cpu().numpy(), truth == guess
        confidence = np.nan_to_num(confidence)  # an input so extreme that the model has no answer
        place = np.minimum((confidence * BINS).astype(int), BINS - 1)
        np.add.at(self._bins, place, np.stack([confidence, right, np.ones(len(y))], 1))

    @property
    def metrics(self) -> dict[str, float]:
        """accuracy and calibration of classes, rmse of numbers, and the loss: 0 for a model that is certain and right.

        The loss is the log loss of classes, half the squared error of numbers, half the deviance of counts;
        calibration is the expected calibration error.
        """
        if self.count == 0:
            return {}
        found = {"loss": self._loss / self.count}
        if self.classifies:
            found["accuracy"] = float(np.trace(self._confusion)) / self.count
            found["calibration"] = float(np.abs(self._bins[:, 0] - self._bins[:, 1]).sum()) / self.count
        else:
            found["rmse"] = math.sqrt(self._squares / self.count)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def drawn(self) -> dict[str, Any]:
        """What a picture of the predictions needs: confusion by class, reliability by confidence."""
        if not self.classifies or self.count == 0:
            return {}
        sums = self._bins[self._bins[:, 2] > 0]
        reliability = [{"confidence": c / n, "accuracy": r / n, "count": int(n)} for c, r, n in sums.tolist()]
        confusion = self._confusion.tolist() if len(self._confusion) <= MOST_CLASSES else None
        return {"confusion": confusion, "reliability": reliability}


def choices(mean: Tensor) -> NDArray[np.int64]:
    """The likeliest class of each row."""
    chosen = mean[:, 0] > 0.5 if mean.shape[1] == 1 else mean.argmax(1)
    made: NDArray[np.int64] = chosen.long().cpu().numpy()
    return made


def evaluate(states: Sequence[State], holdout: Data) -> list[Evaluation]:
    """Figures of several versions, in one pass."""
    made = [Evaluation(state) for state in states]
    for chunk in holdout:
        for evaluation in made:
            evaluation.add(*evaluation.predicted(chunk.x), chunk.y)
    return made


def disagreement(one: State, other: State, holdout: Data) -> float | None:
    """How far two versions' predictions differ: the share of examples that they put in different classes.

    For numbers and counts: the root mean square of the difference, relative to the targets' standard deviation.
    None without a holdout, or if a prediction is not a finite number.
    """
    left, right = Evaluation(one), Evaluation(other)
    count, differing, squares, y_sum, y_squares, middle = 0, 0, 0.0, 0.0, 0.0, None
    for chunk in holdout:
        a, b = left.predicted(chunk.x)[1], right.predicted(chunk.x)[1]
        count += len(chunk)
        if left.classifies:
            differing += int((choices(a) != choices(b)).sum())
        else:
            squares += float(((a - b).double() ** 2).sum())
            # around their middle: squares of large numbers would leave no digits for the spread
            middle = float(chunk.y.double().mean()) if middle is None else middle
            y = chunk.y.double() - middle
            y_sum, y_squares = y_sum + float(y.sum()), y_squares + float((y**2).sum())
    if count == 0:
        return None
    if left.classifies:
        return differing / count
    spread = y_squares / count - (y_sum / count) ** 2
    if not math.isfinite(squares) or not spread > 0:
        return 0.0 if squares == 0 else None
    return math.sqrt(squares / count / spread)


def weight_distance(one: State, other: State) -> float | None:
    """|w - w'|; None where weights do not mean the same: networks, or models of different architectures."""
    if not one.predictor.linear or one.predictor.spec != other.predictor.spec:
        return None
    return float((one.w - other.w).norm())
