"""The head of a ledger: locking a model's row, and taking the next positions under this lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from core.audit import entries
from core.clock import now
from core.errors import NotFound
from core.kprior.model.spec import SpecPart
from core.ledger import bulk
from core.models.policy import HoldoutPolicy
from core.tables.ledger import ChangeKind
from core.tables.models import Model

MOVE = """UPDATE models SET head = head + :size, train_count = train_count + :train,
    holdout_count = holdout_count + :holdout, removed_count = removed_count + :removed,
    quarantined_count = quarantined_count + :quarantined, pending_count = pending_count + :pending WHERE id = :model"""
FRACTION = "COALESCE(policy -> 'holdout' ->> 'fraction', policy ->> 'holdout')"
"""The policy has a number or an object; `->> 'fraction'` of a number is null in both databases."""
BY = "COALESCE(policy -> 'holdout' ->> 'by', 'subject')"
SAME = f"""CAST({FRACTION} AS DOUBLE PRECISION) = :holdout_fraction AND {BY} = :holdout_by
    AND layout_position = :layout_position AND pending_count = 0
    AND (:newest < 0 OR :newest = (SELECT COALESCE(MAX(id), 0) FROM suppressions))"""
"""While examples without a label exist, one of them may have the id of a new example. `newest` is the last completed
erasure that the subjects of the batch were compared with, or -1 if it has no subjects."""
INSERT = "INSERT INTO changes (model_id, first, last, kind, value, created_at)"
MOVED = "SELECT id, head - :size + 1, head, :kind, CAST(:value AS JSONB), :now FROM moved RETURNING last"
ADVANCE = f"WITH moved AS ({MOVE} RETURNING id, head) {INSERT} {MOVED}"
"""A single statement, where the database supports it, saves a round trip."""
ADVANCE_IF_SAME = f"WITH moved AS ({MOVE} AND {SAME} RETURNING id, head) {INSERT} {MOVED}"
AUDIT = f"INSERT INTO audit_entries ({entries.COLUMNS})"
AUDITED = ":now, :actor, :action, :audited_model, :client, :request_id"
ADVANCE_AND_AUDIT = ADVANCE_IF_SAME.replace(
    f") {INSERT}", f"), audited AS ({AUDIT} SELECT {AUDITED}, CAST(:counts AS JSONB) FROM moved) {INSERT}"
)
"""With the entry of the audit log, for requests that only add examples."""


@dataclass(frozen=True)
class Counts:
    """By how much a change increases a model's counts of examples in force and of removed examples."""

    train: int = 0
    holdout: int = 0
    removed: int = 0
    quarantined: int = 0
    pending: int = 0

    @classmethod
    def of_new(cls, holdout: NDArray[np.bool_]) -> Counts:
        """The counts of new examples; `holdout` is true for those in the holdout."""
        held_out = int(holdout.sum())
        return cls(train=len(holdout) - held_out, holdout=held_out)


@dataclass(frozen=True)
class Expected:
    """What a batch was prepared for, before the model's row is locked."""

    holdout: HoldoutPolicy
    """The policy by which the counts were computed."""
    layout_position: int
    newest: int
    """See `core.suppressions.Screened`."""


def lock(session: Session, model_id: int) -> tuple[HoldoutPolicy, int]:
    """Lock a model's row until the end of the transaction; returns its holdout policy and layout position."""
    connection = session.connection()
    query = f"SELECT {FRACTION}, {BY}, layout_position FROM models WHERE id = :model"
    if connection.dialect.name != "sqlite":  # which has one writer at a time anyway
        query += " FOR UPDATE"
    with bulk.sqlalchemy_errors(connection):
        row = bulk.run(connection, query, {"model": model_id}).fetchone()
    if row is None:
        raise NotFound("model_not_found", "This model does not exist.")
    return HoldoutPolicy(fraction=float(row[0]), by=row[1]), int(row[2])


def take(
    session: Session, model: Model, kind: ChangeKind, size: int, counts: Counts, value: SpecPart | None = None
) -> int:
    """Take the next `size` positions of a locked model for one kind of change; returns the last of them."""
    session.flush()
    last = advance(session, model.id, size, kind, counts, value)
    assert last is not None, "the model is locked"
    session.refresh(model)
    return last


def advance(
    session: Session,
    model_id: int,
    size: int,
    kind: ChangeKind,
    counts: Counts,
    value: SpecPart | None = None,
    expected: Expected | None = None,
) -> int | None:
    """Move a model's head by `size`, update its counts, and record the change; returns the new head.

    The model's row is locked from here on. Returns None, and changes nothing, if the model does not exist. If
    `expected` is given, the same holds if the model is not as expected, or if it has examples without a label.
    """
    connection = session.connection()
    sqlite = connection.dialect.name == "sqlite"
    values = advance_values(model_id, size, kind, counts, value, expected)
    with bulk.sqlalchemy_errors(connection):
        if sqlite:
            values["now"] = sqlite_time(values["now"])
            move = MOVE if expected is None else f"{MOVE} AND {SAME}"
            moved = bulk.run(connection, f"{move} RETURNING head - :size + 1, head", values).fetchall()
            for first, last in moved:
                values |= {"first": first, "last": last}
                bulk.run(connection, f"{INSERT} VALUES (:model, :first, :last, :kind, :value, :now)", values)
                return int(last)
            return None
        row = bulk.run(connection, ADVANCE if expected is None else ADVANCE_IF_SAME, values).fetchone()
        return None if row is None else int(row[0])


def sqlite_time(moment: datetime) -> str:
    """A time in the format in which SQLAlchemy stores it."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def audit(session: Session, values: Mapping[str, Any]) -> None:
    """Write an entry of the audit log on SQLite (`core.audit.entries.values_of`), without the cost of SQLAlchemy."""
    connection = session.connection()
    with bulk.sqlalchemy_errors(connection):
        bulk.run(connection, f"{AUDIT} VALUES ({AUDITED}, :counts)", {**values, "now": sqlite_time(now())})


def advance_values(
    model_id: int,
    size: int,
    kind: ChangeKind,
    counts: Counts,
    value: SpecPart | None,
    expected: Expected | None,
) -> dict[str, Any]:
    """The parameters of `ADVANCE`."""
    encoded = None if value is None else json.dumps(value)
    values: dict[str, Any] = {"model": model_id, "size": size, "kind": kind.value, "value": encoded, "now": now()}
    if expected is not None:
        holdout = expected.holdout
        values |= {"holdout_fraction": holdout.fraction, "holdout_by": holdout.by}
        values |= {"layout_position": expected.layout_position, "newest": expected.newest}
    return {**values, **asdict(counts)}
