"""Examples without a label, which are stored outside the ledger with the prediction that they got on arrival.

The functions that write need the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.database import rows_changed
from core.ledger.batch import Batch, stored_bytes
from core.ledger.queries import batched, find_purged
from core.tables.analyses import Analysis, AnalysisKind
from core.tables.ledger import Change, ChangeKind, Example, PendingExample
from core.tables.models import Model

if TYPE_CHECKING:  # it imports torch, which the scheduler does not need
    from core.ledger.layouts import Layout


def find(session: Session, model_id: int, ids: Sequence[str]) -> dict[str, PendingExample]:
    """The pending examples with these ids, those that an erasure request restricts included."""
    found: dict[str, PendingExample] = {}
    for some in batched(list(dict.fromkeys(ids))):
        rows = select(PendingExample).where(PendingExample.model_id == model_id, PendingExample.id.in_(some))
        found.update((row.id, row) for row in session.scalars(rows))
    return found


def inputs_of(rows: Sequence[PendingExample], layout: Layout) -> tuple[NDArray[Any], Sequence[str | None] | None]:
    """(n, width) the inputs of pending examples, and the texts of unseen values, converted to a layout."""
    # a row is newer than the last change of the layout that it was stored in
    positions = np.array([row.layout_position + 1 for row in rows])
    _, x, unseen = layout.convert(positions, np.zeros(len(rows)), [row.x for row in rows], [row.unseen for row in rows])
    return x, unseen


def content_of(row: PendingExample, layout: Layout) -> tuple[bytes, str | None, bytes | None, float, bool]:
    """Input, unseen values, subject, weight and split of a pending example, by which it is compared."""
    weight = 1.0 if row.weight is None else row.weight
    x, unseen = inputs_of([row], layout)
    return stored_bytes(x[0]), unseen[0] if unseen else None, row.subject, weight, row.holdout


def store(session: Session, model_id: int, batch: Batch, holdout: NDArray[np.bool_]) -> None:
    """Store new examples without labels.

    A version that an erasure has purged since it made its predictions leaves none of them.
    """
    weights, predicted, moment = batch.stored_weights, batch.predicted, now()
    numbers = () if predicted is None else (predicted.version, predicted.challenger)
    gone = find_purged(session, model_id, numbers) if numbers else set[int]()
    rows: list[dict[str, Any]] = []
    for i, id_ in enumerate(batch.ids.to_pylist()):
        row = {
            "model_id": model_id,
            "id": id_,
            "subject": batch.subjects[i],
            "holdout": bool(holdout[i]),
            "weight": None if weights is None else weights[i],
            "time": None if batch.times is None else to_moment(batch.times[i]),
            "source": None if batch.sources is None else batch.sources[i],
            "layout_position": batch.layout_position,
            "x": batch.features[i],
            "unseen": None if batch.unseen is None else batch.unseen[i],
            "version": None,
            "mean": None,
            "challenger": None,
            "challenger_mean": None,
            "restricted": False,
            "created_at": moment,
        }
        if predicted is not None:
            if predicted.version not in gone:
                row |= {"version": predicted.version, "mean": predicted.mean[i].astype("<f8").tobytes()}
            if predicted.challenger_mean is not None and predicted.challenger not in gone:
                mean = predicted.challenger_mean[i].astype("<f8").tobytes()
                row |= {"challenger": predicted.challenger, "challenger_mean": mean}
        rows.append(row)
    session.execute(insert(PendingExample), rows)
    count(session, model_id, len(rows))


def to_moment(time: np.datetime64) -> datetime | None:
    moment: datetime | None = time.astype("M8[us]").item()
    return None if moment is None else moment.replace(tzinfo=UTC)


def count(session: Session, model_id: int, difference: int) -> None:
    """Change the number of pending examples of a model."""
    if difference:
        changed = update(Model).where(Model.id == model_id).values(pending_count=Model.pending_count + difference)
        session.execute(changed)


def remove(session: Session, model: Model, column: str, values: Sequence[Any]) -> dict[Any, int]:
    """Delete pending examples by `id`, `subject` or `source`; returns how many had each value."""
    key = getattr(PendingExample, column)
    found: dict[Any, int] = {}
    for some in batched(list(dict.fromkeys(values))):
        chosen = (PendingExample.model_id == model.id, key.in_(some))
        found.update((value, n) for value, n in session.execute(select(key, func.count()).where(*chosen).group_by(key)))
        drop(session, model.id, *chosen)
    return found


def drop(session: Session, model_id: int, *chosen: ColumnElement[bool]) -> int:
    """Delete the pending examples of a model that satisfy some conditions, and the analyses that may name them.

    Returns how many examples there were.
    """
    ours = (PendingExample.model_id == model_id, *chosen)
    in_use = delete(PendingExample).where(*ours, PendingExample.restricted.is_(False))
    free = rows_changed(session, in_use)
    count(session, model_id, -free)
    gone = free + rows_changed(session, delete(PendingExample).where(*ours))
    if gone:
        delete_naming(session, model_id)
    return gone


def delete_naming(session: Session, model_id: int) -> None:
    """Delete the analyses of a model whose results may name pending examples."""
    naming = (Analysis.model_id == model_id, Analysis.kind == AnalysisKind.LABELLING.value)
    session.execute(delete(Analysis).where(*naming))


def restrict(session: Session, model_id: int, subjects: Collection[bytes]) -> int:
    """Hide the pending examples of a person from everybody, because of an erasure request; returns how many are new."""
    free = (PendingExample.model_id == model_id, PendingExample.subject.in_(subjects), ~PendingExample.restricted)
    hidden = rows_changed(session, update(PendingExample).where(*free).values(restricted=True))
    if hidden:
        count(session, model_id, -hidden)
        delete_naming(session, model_id)
    return hidden


def lift(session: Session, model_id: int, subjects: Collection[bytes]) -> int:
    """End the restriction of a person's pending examples; returns how many there are.

    An example whose id has been used for another one since is deleted.
    """
    hidden = (PendingExample.model_id == model_id, PendingExample.subject.in_(subjects), PendingExample.restricted)
    in_use = or_(Example.removed.is_(None), Example.quarantine.is_not(None))
    used = select(Example.id).where(Example.model_id == model_id, in_use)
    session.execute(delete(PendingExample).where(*hidden, PendingExample.id.in_(used)))
    shown = rows_changed(session, update(PendingExample).where(*hidden).values(restricted=False))
    count(session, model_id, shown)
    return shown


def count_restricted(session: Session, model_id: int, subjects: Collection[bytes]) -> int:
    """How many pending examples of a person an erasure request restricts."""
    hidden = (PendingExample.model_id == model_id, PendingExample.subject.in_(subjects), PendingExample.restricted)
    return session.scalar(select(func.count()).where(*hidden)) or 0


def has_older(session: Session, model_id: int, moment: datetime) -> bool:
    """Whether a model has pending examples that arrived at or before a time."""
    old = (PendingExample.model_id == model_id, PendingExample.created_at <= moment)
    return session.scalar(select(PendingExample.id).where(*old).limit(1)) is not None


def layout_position_at(session: Session, model: Model, position: int) -> int:
    """Where the input or the target had changed last at a position."""
    if model.layout_position <= position:
        return model.layout_position
    kinds = (ChangeKind.INPUT, ChangeKind.TARGET)
    changed = (Change.model_id == model.id, Change.value.is_not(None), Change.kind.in_(kinds), Change.last <= position)
    return session.scalar(select(func.max(Change.last)).where(*changed)) or 0
