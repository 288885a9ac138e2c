"""Models, what is held, and changes of their spec or examples."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from amend.responses.base import Answer


class Counts(Answer, frozen=True):
    """Examples by where they are."""

    train: int
    holdout: int
    removed: int


class Held(Answer, frozen=True):
    """Since when nothing is adapted, retrained or promoted by itself, why, and the id of the key that asked for it."""

    since: datetime
    why: str
    by: str


class Model(Answer, frozen=True):
    """A model as it stands."""

    name: str
    input: dict[str, Any]
    target: dict[str, Any]
    architecture: dict[str, Any]
    regularizer: dict[str, Any]
    training: dict[str, Any]
    policy: dict[str, Any]
    counts: Counts
    head: int
    """The last position of the ledger."""
    champion: int | None
    """The version that answers predictions."""
    pending: int
    """Changes that the champion does not stand for yet."""
    created_at: datetime
    held: Held | None = None
    withdrawn: bool = False
    """Whether there is no champion because its last training example has gone."""
    loss: dict[str, Any] = msgspec.field(default_factory=dict)
    """What training minimises."""
    class_weight: dict[str, float] | None = None
    """What examples of each class count more in training."""
    mlflow: dict[str, str] | None = None
    """The ``url`` at which MLflow shows it."""


class Resumed(Model, frozen=True):
    """A model that is not held any more; ``job`` does what waited, and is None if nothing is due."""

    job: str | None = None


class Changed(Answer, frozen=True):
    """Where a change of the model stands in the ledger, and the job that carries it out; the columns that came with it
    and those that went."""

    position: int
    job: str | None
    added: list[str] = []
    dropped: list[str] = []


class Change(Answer, frozen=True):
    """A change of the model: of its ``kind``, regularizer, architecture or loss, to ``value``; or of some
    ``examples``, which were corrected (``replaced``)."""

    position: int
    kind: str
    value: dict[str, Any] | None
    created_at: datetime
    examples: int | None = None
