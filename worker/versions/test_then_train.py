"""Test-then-train evaluation in a job: score new examples with the champion before the model learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from core.kprior import State
from core.kprior.data.label_sets import to_matrix
from core.ledger import passes
from core.ledger.batch import to_times
from core.ledger.queries import find_purged
from core.ledger.untrained_classes import has_all_classes, untrained_classes, untrained_labels
from core.quality import queries
from core.quality.batch_alarm import ALARM_ROWS, BatchLoss, find_suspicious, rows_of
from core.quality.clusters import cluster
from core.quality.erased_records import round_windows
from core.quality.evaluation_windows import Scores, split_by_time
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.quality.scoring import overlay, score, score_means
from core.quality.segments import name_rows
from core.quality.standard_errors import Estimate, estimate
from core.tables.ledger import RecordedPrediction
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import FIRST, Version, VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.queries import champion_of, first_served
from core.webhooks.events import emit
from worker.versions.snapshot import ModelSnapshot


@dataclass(frozen=True)
class NewExamplesScored:
    """What the champion and the frozen version predicted for the examples that a job is about to learn."""

    since: int
    """The position up to which earlier jobs have scored."""
    until: int
    windows: tuple[QualityWindow, ...] = ()
    alarm: tuple[BatchLoss, ...] = ()
    """The batches that raise an alarm together: this one, and earlier ones if it is small."""

    def record(self, session: Session, model: Model, job_id: str | None) -> None:
        """Store the windows, in the transaction that records the version.

        Does nothing if another job was faster, or has scored later examples: a retrain may be at an earlier position.
        """
        if model.scored_position != self.since or self.until <= self.since:
            return
        model.scored_position = self.until
        queries.forget_recorded(session, model.id, self.until)
        for window in self.windows:
            window.job_id = job_id
            session.add(window)
        used = {number for window in self.windows for number in (window.champion, window.frozen, window.challenger)}
        if gone := find_purged(session, model.id, used):  # by an erasure that ended after the examples were scored
            session.flush()
            round_windows(session, model.id, gone, ())
        if self.alarm:
            queries.mark_alarm(session, model.id, [batch.job for batch in self.alarm])
            emit(session, WebhookEvent.BATCH_SUSPICIOUS, model=model.name, job=job_id, rows=rows_of(self.alarm))


def score_new_examples(snapshot: ModelSnapshot) -> NewExamplesScored:
    """Score the examples that arrived since the last job, training and holdout, each of them once."""
    database = snapshot.context.database
    with database.read() as session:
        model = session.get_one(Model, snapshot.model_id)
        since, until = model.scored_position, snapshot.at
        champion, frozen = champion_of(session, model), find_frozen(session, model)
        spans = queries.spans_of_new_examples(session, model.id, since, until)
        earlier = queries.recent_losses(session, model.id)
    nothing = NewExamplesScored(since, until)
    state = load(snapshot, champion)
    if champion is None or state is None or not spans:
        return nothing
    states = {"champion": state}
    if frozen is not None and frozen.number != champion.number and (first := load(snapshot, frozen)) is not None:
        states["frozen"] = first
    added = [
        passes.read_added(database, snapshot.model_id, snapshot.spec, since, until, part) for part in (False, True)
    ]
    data = [chunk for part in added for chunk in part]
    positions, scored = score(list(states.values()), data, MetricOptions(snapshot.policy.threshold))
    new = np.zeros(len(positions), bool)
    for start, end, _ in spans:
        new |= (positions >= start) & (positions <= end)
    with database.read() as session:
        new &= ~np.isin(positions, queries.returned_positions(session, snapshot.model_id, positions[new], champion))
    if not new.any():
        return nothing
    contestants = {name: rows.take(new) for name, rows in zip(states, scored, strict=True)}
    if frozen is not None and "frozen" not in contestants and frozen.number == champion.number:
        contestants["frozen"] = contestants["champion"]
    with database.read() as session:
        details = queries.RowDetails.read(session, snapshot.model_id, positions[new])
        recorded = queries.recorded_predictions(session, snapshot.model_id, since, until)
    rows, by = use_recorded("version", positions[new], contestants["champion"], recorded, snapshot, state)
    by[by == 0] = champion.number
    contestants["champion"] = rows
    challenged, challengers = use_recorded("challenger", positions[new], rows, recorded, snapshot, state)
    clusters = cluster(positions[new], details.subject)
    names = name_rows(snapshot.spec, snapshot.policy.segments, (chunk.x for chunk in data))
    segments = {column: values[new] for column, values in names.items()}
    scores = Scores(rows.target, positions[new], rows.y, rows.weight, clusters, contestants, segments)
    expected = find_expected(snapshot, champion, state, rows)
    loss = estimate(rows.take(expected), "loss", np.unique(clusters[expected], return_inverse=True)[1])
    judged = BatchLoss(loss, int(expected.sum()))
    alarm = find_suspicious(judged, earlier, holdout_loss(champion)) if judged.rows else None
    times = moments(positions[new], details.time, spans)
    windows = []
    for version, challenger in sorted(set(zip(by.tolist(), challengers.tolist(), strict=True))):
        which = (by == version) & (challengers == challenger)
        part = scores.take(which)
        if challenger:
            part.contestants["challenger"] = challenged.take(which)
        for moment, together in split_by_time(part, times[which]):
            window = make_window(snapshot, moment, together, version, frozen, alarm is not None)
            window.challenger = challenger or None
            windows.append(window)
    return NewExamplesScored(since, until, tuple(windows), tuple(alarm or ()))


def find_expected(snapshot: ModelSnapshot, champion: Version, state: State, rows: ScoredRows) -> NDArray[np.bool_]:
    """(n,) which rows count for the alarm: the first examples of a class or label that was added raise none."""
    if rows.target not in ("classes", "labels") or has_all_classes(champion, state.spec):
        return np.ones(len(rows), bool)
    with snapshot.context.database.read() as session:
        found = (session, snapshot.model_id, state.spec, champion.position)
        if rows.target == "classes":
            return ~np.isin(rows.y, untrained_classes(*found))
        untrained = untrained_labels(*found)
    expected: NDArray[np.bool_] = to_matrix(rows.y, len(rows.labels))[:, untrained].max(1, initial=0) == 0
    return expected


def use_recorded(
    who: Literal["version", "challenger"],
    positions: NDArray[np.int64],
    rows: ScoredRows,
    recorded: Mapping[int, RecordedPrediction],
    snapshot: ModelSnapshot,
    state: State,
) -> tuple[ScoredRows, NDArray[np.int64]]:
    """The rows with the predictions that were recorded when they arrived, and the numbers of the versions that made
    them; 0 for rows without a recorded prediction, which stay as they are.
    """
    name = "mean" if who == "version" else "challenger_mean"
    by = np.zeros(len(positions), np.int64)
    found: list[int] = []
    means: list[NDArray[np.float64]] = []
    for i, position in enumerate(positions.tolist()):
        row = recorded.get(position)
        data = None if row is None else getattr(row, name)
        number = None if row is None else getattr(row, who)
        mean = None if data is None else np.frombuffer(data, "<f8")
        if number is not None and mean is not None and len(mean) == state.predictor.family.outputs:
            by[i] = number
            found.append(i)
            means.append(mean)
    if not found:
        return rows, by
    which = np.array(found)
    options = MetricOptions(snapshot.policy.threshold)
    return overlay(rows, which, score_means(state, rows.take(which), np.stack(means), options)), by


def holdout_loss(champion: Version) -> Estimate | None:
    """The champion's loss on the holdout; None if there are too few rows to compare a batch with."""
    metrics = champion.metrics
    enough = metrics.get("rows", 0) >= ALARM_ROWS and "loss" in metrics
    return Estimate(metrics["loss"], metrics.get("loss_se", 0.0)) if enough else None


def find_frozen(session: Session, model: Model) -> Version | None:
    """The version that shows what the model would be without updates: the oldest one that still exists."""
    first = session.get(Version, (model.id, FIRST))
    if first is not None and first.state is not VersionState.PURGED:
        return first
    return first_served(session, model.id)


def load(snapshot: ModelSnapshot, version: Version | None) -> State | None:
    """A version's state, if it can predict the model's present examples."""
    state = snapshot.load_or_none(version)
    return state if state is not None and snapshot.has_schema_of(state) else None


def moments(
    positions: NDArray[np.int64], times: dict[int, datetime], spans: list[tuple[int, int, datetime]]
) -> NDArray[np.datetime64]:
    """The event time of each row, or else its arrival."""
    starts = np.array([first for first, _, _ in spans])
    place = np.searchsorted(starts, positions, "right") - 1
    arrived = to_times([arrival for _, _, arrival in spans])[place]
    given = to_times([times.get(position) for position in positions.tolist()])
    filled: NDArray[np.datetime64] = np.where(np.isnat(given), arrived, given)
    return filled


def make_window(
    snapshot: ModelSnapshot, start: datetime, scores: Scores, champion: int, frozen: Version | None, alarm: bool
) -> QualityWindow:
    return QualityWindow(
        model_id=snapshot.model_id,
        start=start,
        first_position=int(scores.position.min()),
        last_position=int(scores.position.max()),
        rows=len(scores),
        weight=float(scores.weight.sum()),
        heaviest=scores.largest_share(),
        champion=champion,
        frozen=frozen.number if frozen is not None and "frozen" in scores.contestants else None,
        metrics=scores.metrics(),
        scores=scores.to_bytes(),
        alarm=alarm,
        rounded=False,
    )
