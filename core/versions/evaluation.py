"""How good a version is: figures of its predictions on the holdout, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtr
from torch import Tensor

from core.kprior import Data, Examples, State
from core.kprior.data.codec import Tensors
from core.kprior.data.partitioned import accumulate
from core.kprior.model.posterior import LEVEL
from core.kprior.model.spec import gives_scores
from core.kprior.passes.accumulator import Accumulator, Combined
from core.kprior.passes.moments import MIN_COUNT, Moments
from core.kprior.posterior import LatePosterior, NoPosterior
from core.tables.figures import EvaluationFigures, ReliabilityBin
from core.versions.scores import area_under_curve, explained_variance, f1_score

BINS, LEVELS = 10, 20
MAX_CLASSES = 50
"""Of a confusion matrix: more could not be read, and with thousands of classes it would take hundreds of megabytes."""


class Mean:
    """A mean of numbers that come chunk by chunk, each by its weight, and its standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = Moments([0, 1])
        """By the weights, and by their squares."""

    def add(self, values: Tensor, weight: Tensor) -> None:
        """Take the next numbers."""
        self.count += len(values)
        values, weight = values.double(), weight.double()
        v = torch.stack([weight, weight**2])
        total = v.sum(1)
        mean = v @ values / total.clamp(min=MIN_COUNT)
        square = (v * (values - mean[:, None]) ** 2).sum(1)
        self._moments.merge({"count": total, "mean": mean, "square": square})

    def sums(self) -> Tensor:
        """(7,): all of it, for `merge`."""
        return torch.cat([torch.tensor([self.count], dtype=torch.float64), *self._moments.sums().values()])

    def merge(self, sums: Tensor) -> None:
        """Take the numbers that came elsewhere."""
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
        """The standard error: how far, by chance, it may be from the mean of all that could have come.

        sqrt(sum v^2 (x - mean)^2) / sum v: no less than what any one of them adds to the mean.
        """
        if not self.count:
            return math.nan
        found = self._moments
        squares = found.square[1] + found.count[1] * (found.mean[1] - found.mean[0]) ** 2
        return math.sqrt(float(squares)) / self.weight


class Evaluation(Accumulator):
    """Figures of one version's predictions, added up chunk by chunk."""

    kind = "evaluation"

    def __init__(self, state: State) -> None:
        self.state = state
        self.target: str = state.spec["target"]["kind"]
        self.classifies = self.target in ("binary", "classes")
        self.scores = gives_scores(state.spec)
        """Whether classes are told by a score, and no probability."""
        self.work = 2.0 * state.predictor.size
        classes = max(2, state.predictor.family.outputs)
        self._loss, self._square, self._right = Mean(), Mean(), Mean()
        self._heaviest = 0.0
        self._classes = np.zeros((4, classes))
        """Of each class: how often it was predicted rightly, was predicted, was there; and the weight of those."""
        self._rows: list[Tensor] = []
        """(n, 3) each: predicted mean, truth and weight, of targets that are one number. There are some 20 000 rows."""
        self._confusion = np.zeros((classes, classes), np.int64) if classes <= MAX_CLASSES else None
        self._bins = np.zeros((BINS, 4))
        """Of each bin: sums of confidences, of those that were right, of all, by their weights; how many there are."""
        self._posterior = LatePosterior(state) if self.target == "number" else None
        self._levels = np.zeros(LEVELS)
        """Numbers by how wide an interval has to be to hold them, in twentieths of the posterior: their weights."""

    @property
    def count(self) -> int:
        return self._loss.count

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs f and means h(f)."""
        with torch.inference_mode():
            f = self.state.predictor.outputs(self.state.w, x)
            return f, self.state.predictor.family.mean(f)

    def add(self, chunk: Examples) -> None:
        f, mean = self.predict(chunk.x)
        weight = weights_of(chunk)
        self.add_predictions(f, mean, chunk.y, weight)
        self.add_levels(chunk, f, weight)

    def add_levels(self, chunk: Examples, f: Tensor, weight: Tensor) -> None:
        """How wide the interval around each predicted number f has to be, where the model says how sure it is."""
        if self._posterior is None:
            return
        try:
            posterior = self._posterior()
        except NoPosterior:
            self._posterior = None
            return
        with torch.inference_mode():
            predictor = self.state.predictor
            phi = predictor.features(chunk.x) if predictor.linear else predictor.last_features(chunk.x, self.state.w)
        there = f.double().cpu().numpy()
        std = torch.from_numpy(posterior.assess(predictor.family.name, there, phi.double().cpu().numpy()).std)
        off = (chunk.y.double().cpu() - f.double().cpu()) / std
        level = np.nan_to_num(2 * stdtr(posterior.freedom, off.abs().numpy()) - 1, nan=1.0)[:, 0]
        place = (level * LEVELS).astype(int).clip(max=LEVELS - 1)
        self._levels += np.bincount(place, weight.numpy(), minlength=LEVELS)

    def add_predictions(self, f: Tensor, mean: Tensor, y: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Take the predictions for a chunk of examples; what each example adds to the means among the metrics."""
        y = y.to(f)
        loss = self.state.predictor.family.loss(y, f).double()
        if self.target == "count":  # the least that a count of y can cost; of the others it is 0
            loss = loss - (y - torch.xlogy(y, y)).double().sum(1)
        loss = loss.cpu()
        self._loss.add(loss, weight)
        self._heaviest = max(self._heaviest, float(weight.max()) if len(weight) else 0.0)
        if self.target != "classes":
            self._rows.append(torch.stack([mean[:, 0].double().cpu(), y[:, 0].double().cpu(), weight], 1))
        if not self.classifies:
            self._square.add(((mean - y).double() ** 2).sum(1).cpu(), weight)
            return {"loss": loss}
        guess, truth = self.choose(mean), predicted_classes(y)
        hits = torch.from_numpy(truth == guess)
        self._right.add(hits, weight)
        for row, classes in zip(self._classes, (truth[truth == guess], guess, truth), strict=False):
            row += np.bincount(classes, minlength=len(row))
        self._classes[3] += np.bincount(truth, weight.numpy(), minlength=self._classes.shape[1])
        if self._confusion is not None:
            np.add.at(self._confusion, (truth, guess), 1)
        if self.scores:
            return {"loss": loss, "accuracy": hits}
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

    def choose(self, mean: Tensor) -> NDArray[np.int64]:
        """The class of each row, by its mean or its score."""
        return predicted_classes(mean, 0.0 if self.scores else 0.5)

    def empty(self) -> Self:
        return type(self)(self.state)

    def sums(self) -> Tensors:
        found = {"loss": self._loss.sums(), "square": self._square.sums(), "right": self._right.sums()}
        found |= {"bins": torch.from_numpy(self._bins), "classes": torch.from_numpy(self._classes)}
        found |= {"rows": self.rows(), "heaviest": torch.tensor(self._heaviest, dtype=torch.float64)}
        found["levels"] = torch.from_numpy(self._levels)
        return found if self._confusion is None else {**found, "confusion": torch.from_numpy(self._confusion)}

    def merge(self, sums: Tensors) -> None:
        self._loss.merge(sums["loss"])
        self._square.merge(sums["square"])
        self._right.merge(sums["right"])
        self._bins += sums["bins"].numpy()
        self._levels += sums["levels"].numpy()
        self._classes += sums["classes"].numpy()
        self._rows.append(sums["rows"])
        self._heaviest = max(self._heaviest, float(sums["heaviest"]))
        if self._confusion is not None:
            self._confusion += sums["confusion"].numpy()

    def rows(self) -> Tensor:
        """(n, 3): predicted mean, truth and weight of all rows."""
        return torch.cat(self._rows) if self._rows else torch.zeros(0, 3, dtype=torch.float64)

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        return {}, {"state": torch.frombuffer(bytearray(self.state.to_bytes()), dtype=torch.uint8)}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Self:
        return cls(State.from_bytes(tensors["state"].numpy().tobytes(), device))

    @property
    def heaviest(self) -> float | None:
        """The share of all weights that one row has; None where all have the same."""
        fraction = self._heaviest / self._loss.weight if self.count else 0.0
        return fraction if fraction * self.count > 1 + 1e-9 else None

    @property
    def metrics(self) -> dict[str, float]:
        """accuracy, calibration and f1 of classes, auc of yes/no, rmse and r2 of numbers, and the loss: 0 for a model
        that is certain and right. Of numbers, coverage is the share that is within the interval of 95 %.

        The loss is that of the model: the log loss of classes, half the squared error of numbers, half the deviance of
        counts, or the squared hinge, which has no calibration, or Huber's;
        calibration is the expected calibration error; f1 is that of yes, or the mean over the classes. What begins
        with `baseline_` is what the best constant answer would get on the same rows: the commonest class, or the mean.
        Rows count by their weights, as scikit-learn's `sample_weight` has it, but for auc and f1; the weights of
        classes count in none. `rows` is on how many it is measured, what ends in `_se` the standard error, and
        `heaviest` the share of all weights that one row has, where they differ.
        """
        if self.count == 0:
            return {}
        found: dict[str, float] = {"rows": self.count, "loss": self._loss.value, "loss_se": self._loss.error}
        if (heaviest := self.heaviest) is not None:
            found["heaviest"] = heaviest
        if self.classifies:
            found |= {"accuracy": self._right.value, "accuracy_se": self._right.error}
            if not self.scores:
                off = np.abs(self._bins[:, 0] - self._bins[:, 1]).sum()
                found["calibration"] = float(off / self._bins[:, 2].sum())
            matched, predicted, actual = self._classes[:3, 1:] if self.target == "binary" else self._classes[:3]
            found |= f1_score(matched, predicted, actual, None if self.target == "binary" else self._confusion)
            found["baseline_accuracy"] = float(self._classes[3].max() / self._classes[3].sum())
        else:
            root = math.sqrt(self._square.value)
            found |= {"rmse": root, "rmse_se": self._square.error / (2 * root) if root else 0.0}
            if self._levels.any():
                found["coverage"] = float(self._covered()[round(LEVEL * LEVELS) - 1])
        if self.target != "classes":
            mean, y, weight = np.nan_to_num(self.rows().numpy()).T
            found |= area_under_curve(mean, y > 0.5) if self.classifies else explained_variance(mean, y, weight)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _covered(self) -> NDArray[Any]:
        """The share of numbers within intervals of each level, the narrowest first."""
        shares: NDArray[Any] = np.cumsum(self._levels) / self._levels.sum()
        return shares

    def chart_data(self) -> EvaluationFigures:
        """What a picture of the predictions needs: confusion by class, in rows; reliability by confidence, or coverage
        by the level of an interval.
        """
        if not self.classifies and self._levels.any():
            levels = np.arange(1, LEVELS) / LEVELS
            shares = zip(levels.tolist(), self._covered().tolist(), strict=False)
            return {"coverage": [{"confidence": u, "accuracy": c, "count": self.count} for u, c in shares]}
        if not self.classifies or self.count == 0:
            return {}
        sums = self._bins[self._bins[:, 2] > 0]
        reliability: list[ReliabilityBin] = [
            {"confidence": c / v, "accuracy": r / v, "count": int(n)} for c, r, v, n in sums.tolist()
        ]
        confusion = None if self._confusion is None else self._confusion.tolist()
        return {"confusion": confusion} if self.scores else {"confusion": confusion, "reliability": reliability}


def weights_of(chunk: Examples) -> Tensor:
    """(n,) how many times each row counts."""
    return torch.ones(len(chunk), dtype=torch.float64) if chunk.weight is None else chunk.weight.double().cpu()


def predicted_classes(mean: Tensor, cut: float = 0.5) -> NDArray[np.int64]:
    """The likeliest class of each row; of two, the second above the cut."""
    chosen = mean[:, 0] > cut if mean.shape[1] == 1 else mean.argmax(1)
    made: NDArray[np.int64] = chosen.long().cpu().numpy()
    return made


def evaluate(states: Sequence[State], holdout: Data) -> list[Evaluation]:
    """Figures of several versions, in one pass."""
    made = [Evaluation(state) for state in states]
    accumulate(holdout, Combined(*made))
    return made
