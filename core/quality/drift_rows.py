"""The rows that drift is measured on: a sample of the examples of the last full training, and the most recent ones.

All of them are read from the examples in force when drift is measured, so an erased example leaves no trace. The cost
does not grow with the ledger. Called by the worker after jobs, and by the service.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from core.database import Database
from core.kprior.model.spec import Spec, dtype_of, frozen_encoder, shape_of
from core.ledger import bulk
from core.ledger.holdout_sample import Positions, Sample, SampledRows, as_sample, update_sample
from core.ledger.layouts import Layout
from core.ledger.passes import NOT_REMOVED
from core.ledger.random_rows import LedgerDraw
from core.ledger.spec_history import spec_at
from core.models.policy import policy_of
from core.tables.documents import DriftRows
from core.tables.ledger import HAS_CONTENT, HoldoutSample, PendingExample
from core.tables.models import Model
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.queries import champion_of

ROWS = 5_000
"""Most rows of the reference, and of the window. By chance, the PSI of ten bins is then about 0.004."""
VALUES = 4_000_000
"""Most values of either; wide inputs have fewer rows."""
FEWEST_ROWS = 400
"""Rows of inputs that are even wider."""
MIN_HOLDOUT = 1_000
"""Holdout rows below which training rows are the reference: PSI of fewer rows is noisy."""
DRAW_SEED = 30


@dataclass(frozen=True)
class DriftScope:
    """What drift of a model is measured between, at present."""

    model: Model
    spec: Spec
    champion: Version
    trained_at: int
    """Position of the last full training: rows up to here are the reference, later ones the window."""
    trained_since: datetime
    """When that version was created."""

    @classmethod
    def of(cls, session: Session, model: Model) -> DriftScope | None:
        """None if the model has no champion."""
        champion = champion_of(session, model)
        if champion is None:
            return None
        trained = last_training(session, model.id) or champion
        spec = spec_at(session, model.id, model.spec, model.head)
        return cls(model, spec, champion, trained.position, trained.created_at)

    @property
    def max_rows(self) -> int:
        return min(ROWS, max(FEWEST_ROWS, VALUES // math.prod(engine_shape(self.spec))))


@dataclass(frozen=True)
class DriftSide:
    """Inputs of the reference or of the window."""

    x: Tensor
    """(n, *shape) in the layout of the present spec."""
    positions: Positions
    """(n,) ledger positions; 0 for pending examples."""
    holdout: NDArray[np.bool_]
    """(n,) whether the model never learns the row."""
    sample: Literal["holdout", "training", "recent"]

    def describe(self, last: int) -> DriftRows:
        """The rows in a report; `last` is the position up to which they could be."""
        labelled = self.positions[self.positions > 0]
        return {
            "rows": len(self.positions),
            "first_position": int(labelled.min()) if len(labelled) else None,
            "last_position": last,
            "sample": self.sample,
            "pending": len(self.positions) - len(labelled),
        }


def last_training(session: Session, model_id: int) -> Version | None:
    """The last version trained on all examples that the gate did not reject."""
    trained = (Version.kind == VersionKind.TRAINED, Version.state != VersionState.REJECTED)
    versions = select(Version).where(Version.model_id == model_id, *trained)
    return session.scalar(versions.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def read_reference(database: Database, scope: DriftScope) -> DriftSide:
    """A random sample of the examples up to the last full training: holdout rows, or training rows if those are few."""
    model, count = scope.model, scope.max_rows
    with database.read() as session:
        sample = as_sample(session.get(HoldoutSample, model.id))
    if sample is None and model.holdout_count:  # an erasure has deleted it
        sample = update_sample(database, model.id, model.head, policy_of(model).evaluation.rows)
    rows = sample.rows if sample else np.zeros(0, np.int64)
    chosen = Sample(0, count, 1.0, b"").with_rows(rows[rows <= scope.trained_at])
    x, positions = read_positions(database, scope, chosen.rows)
    if len(positions) < min(MIN_HOLDOUT, count):
        left = min(model.train_count, scope.trained_at)
        draw = LedgerDraw(database, model.id, scope.spec, scope.trained_at, model.head, left)
        drawn = draw(count, DRAW_SEED)
        if len(drawn) > len(positions):
            return DriftSide(drawn.x, drawn.key.numpy(), np.zeros(len(drawn), bool), "training")
    return DriftSide(x, positions, np.ones(len(positions), bool), "holdout")


def read_window(database: Database, scope: DriftScope) -> DriftSide:
    """The most recent examples after the last full training; those that wait for their label come first."""
    pending = read_pending(database, scope)
    training, holdout = recent_positions(database, scope, scope.max_rows - len(pending))
    x, positions = read_positions(database, scope, np.concatenate([training, holdout]))
    none = np.zeros(len(pending), np.int64)
    return DriftSide(
        torch.cat([x, pending]),
        np.concatenate([positions, none]),
        np.concatenate([np.isin(positions, holdout), none == 0]),
        "recent",
    )


def recent_positions(database: Database, scope: DriftScope, count: int) -> tuple[Positions, Positions]:
    """Positions of the `count` newest training and holdout rows after the last full training.

    Searches backwards in growing ranges, because many positions at the end may be removals.
    """
    where = "model_id = :model AND holdout = :holdout AND position > :after AND position <= :until"
    where += f" AND {NOT_REMOVED} AND {HAS_CONTENT.text}"
    found: tuple[list[Positions], list[Positions]] = ([np.zeros(0, np.int64)], [np.zeros(0, np.int64)])
    until, step, total = scope.model.head, 2 * count, 0
    while until > scope.trained_at and total < count:
        after = max(scope.trained_at, until - step)
        values = {"model": scope.model.id, "at": scope.model.head, "after": after, "until": until}
        with database.read() as session:
            for holdout, parts in enumerate(found):
                parts.append(bulk.positions(session, where, {**values, "holdout": bool(holdout)}))
                total += len(parts[-1])
        until, step = after, 2 * step
    training, held_out = (np.concatenate(parts) for parts in found)
    newest = np.sort(np.concatenate([training, held_out]))[max(0, total - count) :]
    return np.intersect1d(training, newest), np.intersect1d(held_out, newest)


def read_positions(database: Database, scope: DriftScope, positions: Positions) -> tuple[Tensor, Positions]:
    """Inputs and positions of those rows that are in force."""
    rows = SampledRows(database, scope.model.id, scope.spec, scope.model.head, positions)
    rows.skip_unencoded = True  # the next job encodes the newest ones
    chunks = list(rows)
    if not chunks:
        return empty_inputs(scope.spec), np.zeros(0, np.int64)
    return torch.cat([chunk.x for chunk in chunks]), torch.cat([chunk.key for chunk in chunks]).numpy()


def read_pending(database: Database, scope: DriftScope) -> Tensor:
    """Inputs of the newest examples without a label that arrived after the last full training.

    None if the model has a frozen encoder, which encodes examples when they have a label.
    """
    if frozen_encoder(scope.spec) is not None:
        return empty_inputs(scope.spec)
    ours = (PendingExample.model_id == scope.model.id, PendingExample.restricted.is_(False))
    later = select(PendingExample.layout_position, PendingExample.x, PendingExample.unseen).where(
        *ours, PendingExample.created_at > scope.trained_since
    )
    newest = later.order_by(PendingExample.created_at.desc(), PendingExample.id.desc()).limit(scope.max_rows)
    with database.read() as session:
        found: list[Any] = [(at + 1, 0.0, x, None, unseen) for at, x, unseen in session.execute(newest)]
        layout = Layout.at(session, scope.model.id, scope.spec, scope.model.head)
    if not found:
        return empty_inputs(scope.spec)
    rows = bulk.to_rows(found, layout.stored_dtype)
    inputs = layout.convert(rows.position, rows.y, rows.x, rows.unseen).x if layout.steps else rows.x
    return torch.from_numpy(inputs).reshape(-1, *layout.shape)


def empty_inputs(spec: Spec) -> Tensor:
    dtype = "float32" if frozen_encoder(spec) else dtype_of(spec["input"])
    return torch.from_numpy(np.zeros((0, *engine_shape(spec)), dtype))


def engine_shape(spec: Spec) -> tuple[int, ...]:
    """The shape of one input as the engine reads it."""
    encoder = frozen_encoder(spec)
    return (encoder["features"],) if encoder else shape_of(spec["input"])
