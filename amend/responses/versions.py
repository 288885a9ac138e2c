"""Versions of a model, and which of them is the champion."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from amend.responses.base import Answer
from amend.responses.models import Held


class Memory(Answer, frozen=True):
    """How much of the past a version remembers."""

    size: int
    fraction: float


class RemovalPromise(Answer, frozen=True):
    """A promise of certified removal, and how much of the ``allowed`` gradient is ``spent``."""

    epsilon: float
    delta: float
    allowed: float
    spent: float | None = None


class Certificate(Answer, frozen=True):
    """How far a version can be from the retrain that nobody ran; of ``kind`` bound, or measured (networks)."""

    kind: str
    bound: float | None = None
    """Covers |w - w_retrain|."""
    relative: float | None = None
    prediction_bound: float | None = None
    """Covers the change of any holdout prediction."""
    gradient_norm: float | None = None
    passes: float = 0
    audit: dict[str, Any] | None = None
    """What was measured of a network: losses of removed, kept and unseen examples, next to those of doing nothing."""
    removal: RemovalPromise | None = None
    """Of a model that was created with one."""


class Cost(Answer, frozen=True):
    """What making a version cost."""

    backward_passes: float
    data_passes: float
    seconds: float


class Version(Answer, frozen=True):
    """A model state that stands for the ledger up to one position."""

    version: int
    kind: str
    parent: int | None
    position: int
    state: str
    method: str
    memory: Memory
    metrics: dict[str, float | None]
    """On ``rows`` of the holdout; what ends in ``_se`` is the standard error of a figure."""
    certificate: Certificate | None
    cost: Cost
    sha256: str | None
    mlflow: dict[str, str | None] | None
    """Where MLflow shows it: ``run_id``, ``version`` and the ``url`` of its page."""
    created_at: datetime
    spec: dict[str, Any] = {}
    """As it was made: input, target, architecture, regularizer, loss."""


class Promoted(Version, frozen=True):
    """The new champion; ``held`` tells whether the model is: promoting an older version holds it."""

    held: Held | None = None


class Promotion(Answer, frozen=True):
    """A version became champion."""

    version: int
    previous: int | None
    by: str
    created_at: datetime


class NamedCoefficient(Answer, frozen=True):
    """What a feature adds to the output (of a class) of a linear model."""

    feature: str
    coefficient: float
    """For each unit of the input, as it is sent."""
    standardised: float
    """For each unit that the model measures in: of a table's numbers, about their deviation."""
    class_: int | str | None = msgspec.field(default=None, name="class")
