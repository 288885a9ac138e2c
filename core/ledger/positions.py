"""The head of a ledger: locking a model's row, and taking the next positions under that lock."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from core.database import now
from core.errors import NotFound
from core.ledger import bulk
from core.tables.ledger import ChangeKind
from core.tables.models import Model

if TYPE_CHECKING:  # the scheduler does without torch
    from core.kprior.model.spec import SpecPart

MOVE = """UPDATE models SET head = head + :size, train_count = train_count + :train,
    holdout_count = holdout_count + :holdout, removed_count = removed_count + :removed WHERE id = :model"""
SAME = "CAST(policy ->> 'holdout' AS DOUBLE PRECISION) = :holdout_fraction AND layout = :layout"
INSERT = "INSERT INTO changes (model_id, first, last, kind, value, created_at)"
MOVED = "SELECT id, head - :size + 1, head, :kind, CAST(:value AS JSONB), :now FROM moved RETURNING last"
ADVANCE = f"WITH moved AS ({MOVE} RETURNING id, head) {INSERT} {MOVED}"
"""One statement on databases that support it, which saves a round trip."""
ADVANCE_IF_SAME = f"WITH moved AS ({MOVE} AND {SAME} RETURNING id, head) {INSERT} {MOVED}"


@dataclass(frozen=True)
class Counts:
    """By how much a change moves a model's counts of examples in force and of removed ones."""

    train: int = 0
    holdout: int = 0
    removed: int = 0

    @classmethod
    def of_new(cls, holdout: NDArray[np.bool_]) -> Counts:
        """The counts of new examples; `holdout` says which are in the holdout."""
        held_out = int(holdout.sum())
        return cls(train=len(holdout) - held_out, holdout=held_out)


def lock(session: Session, model_id: int) -> tuple[float, int]:
    """Lock a model's row until the end of the transaction; returns its holdout fraction and layout."""
    connection = session.connection()
    query = "SELECT policy ->> 'holdout', layout FROM models WHERE id = :model"
    if connection.dialect.name != "sqlite":  # which has one writer at a time anyway
        query += " FOR UPDATE"
    with bulk.sqlalchemy_errors(connection):
        row = bulk.run(connection, query, {"model": model_id}).fetchone()
    if row is None:
        raise NotFound("model_not_found", "There is no such model.")
    return float(row[0]), int(row[1])


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
    holdout_fraction: float | None = None,
    layout: int = 0,
) -> int | None:
    """Move a model's head by `size`, update its counts, and record the change; returns the new head.

    The model's row is locked from here on. None, and nothing has happened, if there is no such model, or none that has
    the holdout fraction which the counts were made with and the layout of the examples.
    """
    connection = session.connection()
    sqlite = connection.dialect.name == "sqlite"
    values = advance_values(model_id, size, kind, counts, value, holdout_fraction, layout)
    with bulk.sqlalchemy_errors(connection):
        if sqlite:
            # as SQLAlchemy writes a time there
            values["now"] = values["now"].replace(tzinfo=None).isoformat(" ", "microseconds")
            move = MOVE if holdout_fraction is None else f"{MOVE} AND {SAME}"
            moved = bulk.run(connection, f"{move} RETURNING head - :size + 1, head", values).fetchall()
            for first, last in moved:
                values |= {"first": first, "last": last}
                bulk.run(connection, f"{INSERT} VALUES (:model, :first, :last, :kind, :value, :now)", values)
                return int(last)
            return None
        row = bulk.run(connection, ADVANCE if holdout_fraction is None else ADVANCE_IF_SAME, values).fetchone()
        return None if row is None else int(row[0])


def advance_values(
    model_id: int,
    size: int,
    kind: ChangeKind,
    counts: Counts,
    value: SpecPart | None,
    holdout_fraction: float | None,
    layout: int = 0,
) -> dict[str, Any]:
    """The parameters of `ADVANCE`."""
    given = None if value is None else json.dumps(value)
    values = {"model": model_id, "size": size, "kind": kind.value, "value": given, "now": now()}
    return {**values, "holdout_fraction": holdout_fraction, "layout": layout, **asdict(counts)}
