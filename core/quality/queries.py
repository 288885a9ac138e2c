"""What the promotion gate and the quality reports read from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session, defer

from core.ledger.quarantine import is_new
from core.ledger.queries import batched
from core.quality.forgetting import MIN_ROUNDED_ROWS
from core.tables.ledger import Change, ChangeKind, Example, RecordedPrediction
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Version, VersionState
from core.versions.history import VersionDraft
from core.versions.queries import champion_of, tip_of


@dataclass(frozen=True)
class GateInputs:
    """What the gate needs from the database."""

    champion: Version | None
    confirmed: Version | None
    alarms: list[tuple[int, int]]
    has_additions: bool
    """Whether the draft learnt new examples: only then can it be rejected."""

    @classmethod
    def read(cls, session: Session, model: Model, draft: VersionDraft) -> GateInputs:
        champion = champion_of(session, model)
        # if an erasure purged the confirmed version, the next one that was promoted stands in for it
        served = (VersionState.SUPERSEDED, VersionState.CHAMPION)
        later = (Version.model_id == model.id, Version.number >= (model.confirmed or 0), Version.state.in_(served))
        confirmed = session.scalars(select(Version).where(*later).order_by(Version.number).limit(1)).first()
        windows = select(QualityWindow.first_position, QualityWindow.last_position)
        alarms = session.execute(windows.where(QualityWindow.model_id == model.id, QualityWindow.alarm)).all()
        # not `draft.since`, which is 0 for a version that was trained from scratch instead of adapted
        tip = tip_of(session, model)
        since = tip.position if tip else 0
        new = (Example.model_id == model.id, Example.removed.is_(None), Example.position > since, is_new(model.id))
        found = select(Example.position).where(*new, Example.position <= draft.position).limit(1)
        return cls(champion, confirmed, [(a, b) for a, b in alarms], session.scalar(found) is not None)


def has_other_changes(session: Session, model: Model, since: int) -> bool:
    """Whether anything after a position still has to be learnt, apart from examples in quarantine."""
    added = (Example.model_id == model.id, Example.removed.is_(None), Example.position > since)
    if session.scalar(select(Example.position).where(*added).limit(1)) is not None:
        return True
    automatic = (ChangeKind.ADDED, ChangeKind.LABELLED, ChangeKind.QUARANTINED)
    later = (Change.model_id == model.id, Change.last > since, Change.kind.not_in(automatic))
    return session.scalar(select(Change.last).where(*later).limit(1)) is not None


def spans_of_new_examples(session: Session, model_id: int, since: int, until: int) -> list[tuple[int, int, datetime]]:
    """First and last positions, and arrival, of batches of new examples; corrections and returned ones are not new."""
    kinds = (ChangeKind.ADDED, ChangeKind.LABELLED)
    new = (Change.model_id == model_id, Change.last > since, Change.first <= until, Change.kind.in_(kinds))
    changes = select(Change.first, Change.last, Change.created_at).where(*new).order_by(Change.last)
    return [(max(first, since + 1), min(last, until), arrived) for first, last, arrived in session.execute(changes)]


@dataclass(frozen=True)
class RowDetails:
    """Subjects and event times of examples, by position."""

    subject: dict[int, bytes]
    time: dict[int, datetime]

    @classmethod
    def read(cls, session: Session, model_id: int, positions: NDArray[np.int64]) -> RowDetails:
        subject: dict[int, bytes] = {}
        time: dict[int, datetime] = {}
        for some in batched(positions.tolist()):
            columns = select(Example.position, Example.subject, Example.time)
            given = or_(Example.subject.is_not(None), Example.time.is_not(None))
            rows = session.execute(columns.where(Example.model_id == model_id, Example.position.in_(some), given))
            for position, person, moment in rows:
                if person is not None:
                    subject[position] = person
                if moment is not None:
                    time[position] = moment
        return cls(subject, time)


def usual_losses(session: Session, model_id: int, count: int) -> list[float]:
    """The champion's losses in the last jobs without an alarm, oldest first."""
    query = select(QualityWindow.job_id, QualityWindow.rows, QualityWindow.metrics)
    calm = query.where(QualityWindow.model_id == model_id, QualityWindow.alarm.is_(False))
    sums: dict[str | None, tuple[float, int]] = {}
    for job, rows, metrics in session.execute(calm.order_by(QualityWindow.id.desc()).limit(20 * count)):
        loss = metrics.get("champion", {}).get("loss")
        if loss is not None:
            total, seen = sums.get(job, (0.0, 0))
            sums[job] = (total + rows * loss, seen + rows)
    return [total / seen for total, seen in list(sums.values())[:count]][::-1]


def list_windows(session: Session, model_id: int, since: datetime | None = None) -> Sequence[QualityWindow]:
    """The stored windows of a model, in order of their positions."""
    query = select(QualityWindow).where(QualityWindow.model_id == model_id)
    if since is not None:
        query = query.where(QualityWindow.start >= since)
    return session.scalars(query.order_by(QualityWindow.first_position, QualityWindow.id)).all()


def oldest_version(session: Session, model_id: int) -> Version | None:
    """The oldest version that was promoted and is not purged."""
    served = (VersionState.SUPERSEDED, VersionState.CHAMPION)
    query = select(Version).where(Version.model_id == model_id, Version.state.in_(served))
    return session.scalars(query.order_by(Version.number).limit(1)).first()


def newest_windows(session: Session) -> dict[int, QualityWindow]:
    """For each model, the last stored window with enough examples to publish rounded metrics of them."""
    enough = QualityWindow.rows >= MIN_ROUNDED_ROWS
    newest = select(func.max(QualityWindow.id)).where(enough).group_by(QualityWindow.model_id)
    query = select(QualityWindow).where(QualityWindow.id.in_(newest)).options(defer(QualityWindow.scores))
    return {window.model_id: window for window in session.scalars(query)}


def outline_windows(session: Session, model_id: int) -> Sequence[QualityWindow]:
    """The stored windows of a model, in order of their positions, without the predictions row by row."""
    query = select(QualityWindow).where(QualityWindow.model_id == model_id).options(defer(QualityWindow.scores))
    return session.scalars(query.order_by(QualityWindow.first_position, QualityWindow.id)).all()


def recorded_predictions(session: Session, model_id: int, since: int, until: int) -> dict[int, RecordedPrediction]:
    """The predictions that examples got before their labels arrived, by the positions of the labels."""
    span = (RecordedPrediction.position > since, RecordedPrediction.position <= until)
    rows = session.scalars(select(RecordedPrediction).where(RecordedPrediction.model_id == model_id, *span))
    return {row.position: row for row in rows}


def forget_recorded(session: Session, model_id: int, until: int) -> None:
    """Delete the recorded predictions up to a position, because they have been scored."""
    scored = (RecordedPrediction.model_id == model_id, RecordedPrediction.position <= until)
    session.execute(delete(RecordedPrediction).where(*scored))
