"""Predictions."""

from __future__ import annotations

import msgspec

from amend.responses.base import Answer


class Prediction(Answer, frozen=True):
    """``mean`` for yes/no, numbers and counts; ``class_`` where there are classes, beside a ``score`` where the loss is
    a squared hinge.

    With ``uncertainty`` a standard deviation and the two ends of an interval of 95 %; of each class where there are
    such.
    """

    mean: float | None = None
    score: float | None = None
    class_: int | str | None = msgspec.field(default=None, name="class")
    probabilities: dict[str, float] | None = None
    std: float | dict[str, float] | None = None
    interval: list[float] | dict[str, list[float]] | None = None


class Predictions(Answer, frozen=True):
    """Predictions in the order of the inputs, and the version that made them."""

    version: int
    outputs: list[Prediction]
