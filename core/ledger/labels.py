"""Labels of examples that were stored without one. A label adds its example to the ledger.

The caller's transaction holds the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from core.errors import Conflict
from core.ledger import bulk, positions, unlabelled_examples
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import batched, look_up_in_force
from core.ledger.returning_subjects import report, store_aside
from core.ledger.spec_history import layout_at
from core.suppressions import Screen
from core.tables.ledger import ChangeKind, Example, PendingExample, RecordedPrediction
from core.tables.models import Model


@dataclass(frozen=True)
class Labelled:
    """The result of sending labels."""

    accepted: int
    unknown: list[str]
    """Ids of which the model has no example."""
    duplicates: int
    """Labels that their examples already had."""
    quarantined: int = 0
    """Accepted labels whose examples are in quarantine, because they are about people whose data was erased."""


def add_labels(
    session: Session, model: Model, ids: Sequence[str], y: NDArray[np.float64], screen: Screen | None = None
) -> Labelled:
    """Add the pending examples with these ids to the ledger, with their labels, in the order of the ids.

    Examples about people whose data was erased go into quarantine, unless the setting is to accept them.

    Raises
    ------
    Conflict
        If one of the examples already has another label. No label is stored.
    """
    waiting = {id_: row for id_, row in unlabelled_examples.find(session, model.id, ids).items() if not row.restricted}
    layout = layout_at(session, model.id, model.head)
    others = list(dict.fromkeys(id_ for id_ in ids if id_ not in waiting))
    columns = (Example.id, Example.position, Example.y, Example.x)
    known = {
        id_: layout.content(position, label, x)[0]
        for id_, position, label, x in look_up_in_force(
            session, model.id, Example.id, others, columns, quarantined=True
        )
    }
    rows: list[PendingExample] = []
    labels: list[float] = []
    unknown: dict[str, None] = {}
    duplicates = 0
    for i, (id_, label) in enumerate(zip(ids, y.tolist(), strict=True)):
        if id_ in known:
            if known[id_] != label:
                message = "this example already has another label; correct it with PUT"
                raise Conflict.at(("labels", i), "label_conflict", message)
            duplicates += 1
        elif id_ in waiting:
            known[id_] = label
            rows.append(waiting[id_])
            labels.append(label)
        else:
            unknown[id_] = None
    aside: frozenset[int] = frozenset()
    if screen is not None and screen.treatment != "accept":
        aside = screen.check_now(session, [row.subject for row in rows]).returning
    for quarantined in (False, True):
        some = [i for i in range(len(rows)) if (i in aside) == quarantined]
        if some:
            values = np.array([labels[i] for i in some])
            apply(session, model.id, [rows[i] for i in some], values, model.layout_position, quarantined)
    report(session, model.id, len(aside), len(aside))
    session.refresh(model)
    return Labelled(len(rows), list(unknown), duplicates, len(aside))


def apply(
    session: Session,
    model_id: int,
    rows: Sequence[PendingExample],
    y: NDArray[np.float64],
    layout_position: int,
    quarantined: bool = False,
) -> tuple[int, int]:
    """Move pending examples to the ledger, with their labels; returns their first and last positions."""
    layout = layout_at(session, model_id, layout_position)
    holdout = np.array([row.holdout for row in rows])
    x, unseen = unlabelled_examples.inputs_of(rows, layout)
    batch = Batch(
        pa.array([row.id for row in rows], pa.string()),
        [row.subject for row in rows],
        x,
        y,
        [row.holdout for row in rows],
        layout_position,
        np.array([1.0 if row.weight is None else row.weight for row in rows]),
        unseen=unseen,
    )
    # without an event time, it is the arrival of the example that counts, not that of its label
    times = batch.times_or([row.time or row.created_at for row in rows])
    batch = replace(batch, times=times, sources=batch.sources_or([row.source for row in rows]))
    if quarantined:
        first, last = store_aside(session, model_id, batch, holdout)
        unlabelled_examples.count(session, model_id, -len(rows))
    else:
        counts = replace(Counts.of_new(holdout), pending=-len(rows))
        taken = positions.advance(session, model_id, len(rows), ChangeKind.LABELLED, counts)
        assert taken is not None, "the model is locked"
        first, last = taken - len(rows) + 1, taken
        bulk.insert(session, model_id, first, batch, holdout)
        # predictions for other classes cannot be compared with a label
        comparable = max((s.position for s in layout.steps if s.target is not None), default=0)
        keep_predictions(session, model_id, first, [row if row.layout_position >= comparable else None for row in rows])
    for some in batched([row.id for row in rows]):
        ours = (PendingExample.model_id == model_id, PendingExample.id.in_(some))
        session.execute(delete(PendingExample).where(*ours).execution_options(synchronize_session=False))
    return first, last


def keep_predictions(session: Session, model_id: int, first: int, rows: Sequence[PendingExample | None]) -> None:
    """Keep the predictions of examples at consecutive positions from `first` until they are scored."""
    values = [
        {
            "model_id": model_id,
            "position": position,
            "version": row.version,
            "mean": row.mean,
            "challenger": row.challenger,
            "challenger_mean": row.challenger_mean,
        }
        for position, row in enumerate(rows, first)
        if row is not None and (row.mean is not None or row.challenger_mean is not None)
    ]
    if values:
        session.execute(insert(RecordedPrediction), values)


def forget_predictions(session: Session, model_id: int, positions: Sequence[int]) -> None:
    """Delete the recorded predictions for examples at some positions."""
    for some in batched(positions):
        ours = (RecordedPrediction.model_id == model_id, RecordedPrediction.position.in_(some))
        session.execute(delete(RecordedPrediction).where(*ours))


def count_predictions(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many recorded predictions there are for examples at some positions."""
    total = 0
    for some in batched(positions):
        ours = (RecordedPrediction.model_id == model_id, RecordedPrediction.position.in_(some))
        total += session.scalar(select(func.count()).where(*ours)) or 0
    return total
