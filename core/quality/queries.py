"""What the promotion gate and the quality reports read from the database."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session, defer

from core.ledger.quarantine import is_new
from core.ledger.queries import batched
from core.quality.batch_alarm import ALARM_WINDOWS, BatchLoss, combine, rows_of
from core.quality.erased_records import MIN_ROUNDED_ROWS
from core.quality.standard_errors import Estimate
from core.tables.ledger import HAS_CONTENT, Change, ChangeKind, Example, RecordedPrediction
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Version, VersionState
from core.versions.queries import champion_of, first_served, tip_of

WINDOWS_PER_JOB = 20
"""Windows that are read for each job: a backfill with many event times has more, of which only some are read."""
RECENT_WINDOWS = WINDOWS_PER_JOB * ALARM_WINDOWS


@dataclass(frozen=True)
class GateInputs:
    """What the gate needs from the database."""

    champion: Version | None
    confirmed: Version | None
    carried: float
    """How much worse `confirmed` is than confirmed versions that erasures purged, whose place it takes."""
    alarms: list[tuple[int, int]]
    has_additions: bool
    """Whether the version learnt new examples: only then can it be rejected."""
    corrected: list[tuple[int, int]]
    """First and last positions of the corrections since the confirmed version, if the version reflects new ones."""

    @classmethod
    def read(cls, session: Session, model: Model, position: int) -> GateInputs:
        """For a version at a position."""
        champion = champion_of(session, model)
        if champion is not None and champion.position < model.accepted_position:
            champion = find_accepted(session, model) or champion
        # if an erasure purged the confirmed version, the next one that was promoted stands in for it
        confirmed = first_served(session, model.id, model.confirmed or 0)
        carried = 0.0
        if confirmed is not None and confirmed.number != model.confirmed:
            gate = confirmed.gate
            carried = gate["confirmed"].get("carried", 0.0) if gate is not None and "confirmed" in gate else 0.0
        alarms = alarmed_spans(session, model.id)
        # not since its parent: a version that was trained from scratch instead of adapted has none
        tip = tip_of(session, model)
        since = tip.position if tip else 0
        # at its position: the examples may have been removed since, but the version has learnt them
        in_force = or_(Example.removed.is_(None), Example.removed > position)
        new = (Example.model_id == model.id, in_force, Example.position > since, is_new(model.id))
        found = select(Example.position).where(*new, Example.position <= position).limit(1)
        corrected = corrected_spans(session, model.id, since, position)
        if corrected and confirmed is not None and confirmed.position < since:
            corrected = corrected_spans(session, model.id, confirmed.position, position)
        return cls(champion, confirmed, carried, alarms, session.scalar(found) is not None, corrected)


def find_accepted(session: Session, model: Model) -> Version | None:
    """The version that learnt the examples that were accepted last, if it can still predict.

    Somebody promoted a version from before them since. They must not count against later examples.
    """
    version = session.get(Version, (model.id, model.confirmed))
    if version is None or version.state is VersionState.PURGED or version.position < model.accepted_position:
        return None
    return version


def alarmed_spans(session: Session, model_id: int) -> list[tuple[int, int]]:
    """First and last positions of the batches with an alarm."""
    windows = select(QualityWindow.first_position, QualityWindow.last_position)
    found = session.execute(windows.where(QualityWindow.model_id == model_id, QualityWindow.alarm))
    return [(first, last) for first, last in found]


def corrected_spans(session: Session, model_id: int, since: int, until: int) -> list[tuple[int, int]]:
    """First and last positions of the corrections after a position, up to another."""
    replaced = (Change.model_id == model_id, Change.kind == ChangeKind.REPLACED)
    found = select(Change.first, Change.last).where(*replaced, Change.last > since, Change.first <= until)
    return [(max(first, since + 1), min(last, until)) for first, last in session.execute(found)]


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


def returned_positions(session: Session, model_id: int, positions: NDArray[np.int64], version: Version) -> list[int]:
    """Which examples at some positions have the id of one that a version reflects, and that was removed since.

    They are not new to the version: whoever removes examples and sends them again corrects them.
    """
    reflected = (Example.position <= version.position, Example.removed > version.removals_position, HAS_CONTENT)
    removed = select(Example.id).where(Example.model_id == model_id, *reflected)
    if session.scalar(removed.limit(1)) is None:
        return []
    ids: dict[str, int] = {}
    for some in batched(positions.tolist()):
        there = (Example.model_id == model_id, Example.position.in_(some))
        ids.update(
            (id_, position) for id_, position in session.execute(select(Example.id, Example.position).where(*there))
        )
    return [ids[id_] for id_ in session.scalars(removed) if id_ in ids]


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


def recent_losses(session: Session, model_id: int) -> list[BatchLoss]:
    """The champion's losses in the last jobs without an alarm whose version was not rejected, oldest first."""
    query = select(QualityWindow.job_id, QualityWindow.rows, QualityWindow.metrics)
    calm = query.where(QualityWindow.model_id == model_id, QualityWindow.alarm.is_(False))
    found: dict[str | None, list[BatchLoss]] = {}
    for job, rows, metrics in session.execute(calm.order_by(QualityWindow.id.desc()).limit(RECENT_WINDOWS)):
        champion = metrics.get("champion", {})
        if "loss" in champion:
            loss = Estimate(champion["loss"], champion.get("loss_se", math.nan))
            found.setdefault(job, []).append(BatchLoss(loss, rows, job))
    jobs = [job for job in found if job is not None]
    rejected = select(Version.job_id).where(Version.job_id.in_(jobs), Version.state == VersionState.REJECTED)
    for job in session.scalars(rejected):
        found.pop(job, None)  # a job may have made several
    return [BatchLoss(combine(windows), rows_of(windows), job) for job, windows in found.items()][::-1]


def mark_alarm(session: Session, model_id: int, jobs: Sequence[str | None]) -> None:
    """Mark the windows of earlier jobs that raised an alarm together with a later one."""
    windows = (QualityWindow.model_id == model_id, QualityWindow.job_id.in_([job for job in jobs if job is not None]))
    session.execute(update(QualityWindow).where(*windows).values(alarm=True))


def list_windows(session: Session, model_id: int, since: datetime | None = None) -> Sequence[QualityWindow]:
    """The stored windows of a model, in order of their positions."""
    query = select(QualityWindow).where(QualityWindow.model_id == model_id)
    if since is not None:
        query = query.where(QualityWindow.start >= since)
    return session.scalars(query.order_by(QualityWindow.first_position, QualityWindow.id)).all()


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


def newest_by_job(session: Session, model_id: int, metric: str, jobs: int) -> list[float]:
    """The champion's metric on new examples in the last jobs, as means by rows, oldest first."""
    window = QualityWindow
    value = window.metrics["champion"][metric].as_float()
    query = select(window.job_id, window.rows, value).where(window.model_id == model_id)
    newest = query.order_by(window.first_position.desc(), window.id.desc()).limit(WINDOWS_PER_JOB * jobs)
    sums: dict[str | None, tuple[float, int]] = {}
    for job, rows, found in session.execute(newest):
        if found is not None:
            total, count = sums.get(job, (0.0, 0))
            sums[job] = (total + rows * found, count + rows)
    return [total / count for total, count in list(sums.values())[:jobs]][::-1]


def recorded_predictions(session: Session, model_id: int, since: int, until: int) -> dict[int, RecordedPrediction]:
    """The predictions that examples got before their labels arrived, by the positions of the labels."""
    span = (RecordedPrediction.position > since, RecordedPrediction.position <= until)
    rows = session.scalars(select(RecordedPrediction).where(RecordedPrediction.model_id == model_id, *span))
    return {row.position: row for row in rows}


def forget_recorded(session: Session, model_id: int, until: int) -> None:
    """Delete the recorded predictions up to a position, because they have been scored."""
    scored = (RecordedPrediction.model_id == model_id, RecordedPrediction.position <= until)
    session.execute(delete(RecordedPrediction).where(*scored))
