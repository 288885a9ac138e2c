"""A reference implementation of the ledger with plain lists, and helpers for tests of the ledger."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sqlalchemy import select
from sqlalchemy.orm import Session

from core import ledger
from core.database import Database
from core.ledger import Added, Replaced
from core.ledger.batch import Batch
from core.ledger.passes import Pass
from core.ledger.subject_hashes import subject_hash
from core.models import catalog
from core.models.policy import HoldoutPolicy, Policy
from core.models.spec import SpecSchema
from core.models.training_options import TrainingSchema
from core.tables.ledger import Change, Example
from core.tables.models import Model

SECRET = b"secret"
HOLDOUT = 0.3
DRAW = HoldoutPolicy(fraction=HOLDOUT)


@dataclass(frozen=True)
class Row:
    """An example as a caller sends it."""

    id: str
    x: tuple[float, ...] = (1.0, 2.0)
    y: float = 0.0
    subject: str | None = None
    split: bool | None = None
    weight: float | None = None

    @property
    def holdout(self) -> bool:
        if self.split is not None:
            return self.split
        if self.subject is not None:
            return int.from_bytes(subject_hash(self.subject, SECRET)[:8], "big") < HOLDOUT * 2**64
        # one step of splitmix64 from the checksum
        z = (zlib.crc32(self.id.encode()) + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) < HOLDOUT * 2**64

    def agrees(self, other: Row) -> bool:
        split = None in (self.split, other.split) or self.split == other.split
        return split and (self.x, self.y, self.subject, self.times) == (other.x, other.y, other.subject, other.times)

    @property
    def times(self) -> float:
        return 1.0 if self.weight is None else self.weight


@dataclass
class Ledger:
    """Changes in order: the one at position p is `changes[p - 1]`."""

    changes: list[tuple[str, Any]] = field(default_factory=list)

    def in_force(self, at: int) -> dict[int, Row]:
        """Examples by position."""
        rows: dict[int, Row] = {}
        for position, (kind, what) in enumerate(self.changes[:at], 1):
            if kind == "added":
                rows[position] = what
            elif kind == "removed":
                del rows[what]
            elif kind == "replaced":
                old, rows[position] = what
                del rows[old]
        return rows

    def training(self, at: int) -> dict[int, Row]:
        return {position: row for position, row in self.in_force(at).items() if not row.holdout}

    def spec(self, first: dict[str, Any], at: int) -> dict[str, Any]:
        return {**first, **{kind: what for kind, what in self.changes[:at] if isinstance(what, dict)}}


def batch(rows: Sequence[Row], dtype: str = "float32") -> Batch:
    return Batch(
        pa.array([row.id for row in rows], pa.string()),
        [None if row.subject is None else subject_hash(row.subject, SECRET) for row in rows],
        np.array([row.x for row in rows], dtype).reshape(len(rows), -1),
        np.array([row.y for row in rows], np.float64),
        [row.split for row in rows],
        weights=np.array([row.weight for row in rows], np.float64) if any(row.weight for row in rows) else None,
    )


def new_model(database: Database, **spec: Any) -> Model:
    """A model of its own for a test: two numbers, yes or no, unless told otherwise."""
    given = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}, **spec}
    policy = Policy(holdout=HOLDOUT)
    with database.write() as session:
        model = catalog.create(
            session, f"m-{uuid.uuid4().hex}", SpecSchema.model_validate(given).plain(), TrainingSchema(), policy
        )
        session.expunge(model)
    return model


def locked(database: Database, model: Model, act: Callable[[Session, Model], Any]) -> Any:
    """Do something in one transaction, under the model's lock."""
    with database.write() as session:
        return act(session, catalog.find(session, model.name, None, lock=True))


def add(database: Database, model: Model, rows: Sequence[Row], dtype: str = "float32") -> Added:
    return ledger.add(database, model.id, DRAW, batch(rows, dtype))


class Removed(NamedTuple):
    """What came of a removal."""

    count: int
    unknown: list[str]
    position: int


def remove(
    database: Database, model: Model, ids: Sequence[str], column: Any = Example.id, stored: Sequence[Any] | None = None
) -> Removed:
    with database.write() as session:
        locked = catalog.find(session, model.name, None, lock=True)
        removed = ledger.remove(session, locked, column, ids, ids if stored is None else stored)
        return Removed(removed.removal.removed, removed.unknown, removed.removal.position)


def correct(database: Database, model: Model, rows: Sequence[Row]) -> Replaced:
    return locked(database, model, lambda s, m: ledger.replace_examples(s, m, batch(rows)))  # type: ignore[no-any-return]


def remove_subjects(database: Database, model: Model, subjects: Sequence[str]) -> Removed:
    hashes = [subject_hash(subject, SECRET) for subject in subjects]
    return remove(database, model, subjects, Example.subject, hashes)


def stored(database: Database, model: Model) -> Model:
    """The model's row as it is now."""
    with database.read() as session:
        return session.get_one(Model, model.id)


def runs(database: Database, model: Model) -> list[tuple[int, int, str]]:
    """First and last position and kind of each run of changes, in order."""
    with database.read() as session:
        found = session.scalars(select(Change).where(Change.model_id == model.id).order_by(Change.first))
        return [(change.first, change.last, change.kind.value) for change in found]


def gap_free(spans: Sequence[tuple[int, ...]], head: int) -> bool:
    """Whether spans (first, last, ...) in order cover 1 to head, each position once."""
    ends = [0, *(span[1] for span in spans)]
    return [span[0] for span in spans] == [end + 1 for end in ends[:-1]] and ends[-1] == head


def contents(found: Pass) -> dict[int, tuple[tuple[float, ...], float, float]]:
    """What a pass reads: x, y and weight by position."""
    rows = {}
    for chunk in found:
        weights = [1.0] * len(chunk) if chunk.weight is None else chunk.weight.tolist()
        for position, x, y, weight in zip(chunk.key.tolist(), chunk.x.tolist(), chunk.y.tolist(), weights, strict=True):
            assert position not in rows
            rows[position] = (tuple(x), y[0], weight)
    assert list(rows) == sorted(rows)
    return rows
