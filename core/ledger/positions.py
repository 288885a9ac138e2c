"""The head of a ledger: locking a model's row, and taking the next positions under this lock."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

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
    AND layout_position = :layout_position AND pending_count = 0"""
"""While examples without a label exist, one of them may have the id of a new example."""
INSERT = "INSERT INTO changes (model_id, first, last, kind, value, created_at)"
MOVED = "SELECT id, head - :size + 1, head, :kind, CAST(:value AS JSONB), :now FROM moved RETURNING last"
ADVANCE = f"WITH moved AS ({MOVE} RETURNING id, head) {INSERT} {MOVED}"
"""A single statement, where the database supports it, saves a round trip."""
ADVANCE_IF_SAME = f"WITH moved AS ({MOVE} AND {SAME} RETURNING id, head) {INSERT} {MOVED}"


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
    holdout: HoldoutPolicy | None = None,
    layout_position: int = 0,
) -> int | None:
    """Move a model's head by `size`, update its counts, and record the change; returns the new head.

    The model's row is locked from here on. Returns None, and changes nothing, if the model does not exist. If
    `holdout` is given, the same holds if the model's holdout policy or layout position differs from the ones that the
    counts and the examples were computed with, or if the model has examples without a label.
    """
    connection = session.connection()
    sqlite = connection.dialect.name == "sqlite"
    values = advance_values(model_id, size, kind, counts, value, holdout, layout_position)
    with bulk.sqlalchemy_errors(connection):
        if sqlite:
            # the format in which SQLAlchemy stores times
            values["now"] = values["now"].replace(tzinfo=None).isoformat(" ", "microseconds")
            move = MOVE if holdout is None else f"{MOVE} AND {SAME}"
            moved = bulk.run(connection, f"{move} RETURNING head - :size + 1, head", values).fetchall()
            for first, last in moved:
                values |= {"first": first, "last": last}
                bulk.run(connection, f"{INSERT} VALUES (:model, :first, :last, :kind, :value, :now)", values)
                return int(last)
            return None
        row = bulk.run(connection, ADVANCE if holdout is None else ADVANCE_IF_SAME, values).fetchone()
        return None if row is None else int(row[0])


def advance_values(
    model_id: int,
    size: int,
    kind: ChangeKind,
    counts: Counts,
    value: SpecPart | None,
    holdout: HoldoutPolicy | None,
    layout_position: int = 0,
) -> dict[str, Any]:
    """The parameters of `ADVANCE`."""
    encoded = None if value is None else json.dumps(value)
    values: dict[str, Any] = {"model": model_id, "size": size, "kind": kind.value, "value": encoded, "now": now()}
    if holdout is not None:
        values |= {"holdout_fraction": holdout.fraction, "holdout_by": holdout.by, "layout_position": layout_position}
    return {**values, **asdict(counts)}
