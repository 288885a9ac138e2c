"""What the checker knows about the database: the present rows, and the content of examples that are gone."""

from __future__ import annotations

import json
import sqlite3
import struct
from typing import Any, NamedTuple

from tests.simulation.world import SimulatedDatabase

OPEN = ("received", "adapting", "verifying", "purging", "failed")


class Violation(BaseException):
    """A property does not hold. Not an Exception: the product must not handle it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class StoredExample(NamedTuple):
    model: int
    position: int
    id: str
    removed: int | None
    holdout: int
    quarantine: int | None
    y: float
    x: bytes
    token: int


class PendingExample(NamedTuple):
    model: int
    id: str
    subject: bytes | None
    restricted: int
    version: int | None
    predicted: int
    """Whether it has a prediction."""
    created_at: str
    token: int


def read_token(x: bytes) -> int:
    """The token of an example: its first feature; -1 if its content is deleted."""
    return int(struct.unpack_from("<f", x)[0]) if x else -1


class ObservedState:
    """Reads with plain SQL, and uses no function of the product."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self.database = database
        self.connection: sqlite3.Connection | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what belongs to the present database."""
        self.close()
        self.content: dict[tuple[int, int], int] = {}
        """Tokens by model and position, also of examples that are gone."""
        self.examples: dict[tuple[int, int], StoredExample] = {}
        """By model and position."""
        self.pending: dict[tuple[int, str], PendingExample] = {}
        """By model and id."""
        self.heads: list[Any] = []

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
        if self.connection is None:
            path = str(self.database.engine.url.database)
            self.connection = sqlite3.connect(path, isolation_level=None, cached_statements=500)
        return self.connection.execute(query, values)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.execute(query, *values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def has(self, query: str, *values: Any) -> bool:
        return self.execute(query, *values).fetchone() is not None

    def has_moved(self) -> bool:
        """Whether the ledger of a model has changed: its statements bypass SQLAlchemy's events."""
        before, self.heads = self.heads, self.execute("SELECT id, head FROM models").fetchall()
        return self.heads != before

    def read_examples(self) -> None:
        query = "SELECT model_id, position, id, removed, holdout, quarantine, y, x FROM examples"
        self.examples = {}
        for row in self.execute(query):
            key = row[:2]
            if key not in self.content:
                self.content[key] = read_token(row[7])
            self.examples[key] = StoredExample(*row, self.content[key])

    def read_pending(self) -> None:
        query = (
            "SELECT model_id, id, subject, restricted, version, mean IS NOT NULL OR challenger_mean IS NOT NULL,"
            " created_at, x FROM pending_examples"
        )
        rows = (PendingExample(*row[:7], read_token(row[7])) for row in self.execute(query))
        self.pending = {(row.model, row.id): row for row in rows}

    def in_force(self, model: int, at: int, removals_position: int | None = None) -> set[int]:
        """Tokens of the training examples in force at a position, without those removed up to another one."""
        return {
            row.token
            for row in self.examples.values()
            if row.model == model
            and row.position <= at
            and not row.holdout
            and (row.removed is None or row.removed > (removals_position or at))
        }

    def quarantined(self, model: int) -> set[int]:
        """Tokens of the examples in quarantine."""
        found = (row for row in self.examples.values() if row.model == model)
        return {row.token for row in found if row.quarantine is not None}

    def requested(self, model: int) -> set[int]:
        """Tokens of examples in a model whose erasure is in progress."""
        rows = self.execute(
            "SELECT p.positions FROM erasure_parts p JOIN erasures e ON e.id = p.erasure_id WHERE p.model_id = ?"
            f" AND e.state IN {OPEN} AND p.state IN {OPEN}",
            model,
        )
        return {self.content[model, at] for (positions,) in rows for at in json.loads(positions)}

    def new_positions(self, model: int, after: int, until: int) -> set[int]:
        """Positions in a range at which new examples or labels arrived."""
        query = (
            "SELECT first, last FROM changes WHERE model_id = ? AND last > ? AND first <= ?"
            " AND kind IN ('added', 'labelled')"
        )
        found = self.execute(query, model, after, until)
        return {at for first, last in found for at in range(max(first, after + 1), min(last, until) + 1)}
