"""The holdout rows on which the gate compares a draft with an older version, as both versions predict them."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from core.kprior import Examples, State
from core.ledger import bulk
from core.ledger.holdout_sample import SampledRows
from core.ledger.random_rows import LedgerDraw
from core.quality.clusters import cluster
from core.quality.gate import ComparedRows
from core.quality.gate_rule import MIN_ROWS
from core.quality.scored_rows import MetricOptions, ScoredRows, concatenate
from core.quality.scoring import score
from core.quality.segments import split_into_segments
from core.tables.models import Model
from core.tables.versions import Version
from worker.versions.snapshot import ModelSnapshot

MIN_OLD_ROWS = 1_000
"""Rows at or before the older version's position. If the sample has fewer, because most of the holdout is newer, more
are drawn from the ledger, so that the comparison does not end as the ledger grows."""
DRAW_SEED = 31


def compare_rows(snapshot: ModelSnapshot, draft: State, version: Version, state: State) -> ComparedRows:
    """The sample of the holdout, and older rows if it has few, as a draft and an older version predict them.

    A version with other columns or classes predicts the rows as they were at its position; newer rows are left out.
    """
    options, same_schema = MetricOptions.of(snapshot.policy), snapshot.has_schema_of(state)
    positions, candidate = snapshot.holdout_positions, snapshot.predict_holdout(draft)
    old = snapshot.predict_holdout(state) if same_schema else None
    older = draw_older(snapshot, version.position)
    if older:
        more, (rows, *rest) = score([draft, state] if same_schema else [draft], older, options)
        positions, candidate = np.concatenate([positions, more]), concatenate([candidate, rows])
        old = None if old is None else concatenate([old, *rest])
    chosen = np.ones(len(positions), bool)
    if old is None:
        chosen = positions <= version.position
        old = predict_as_of(snapshot, version, state, positions[chosen])
    data, columns = chain(snapshot.holdout, older), snapshot.policy.segments
    segments = [segment.take(chosen) for segment in split_into_segments(snapshot.spec, columns, data, MIN_ROWS)]
    subjects = snapshot.holdout_subjects | read_subjects(snapshot, older)
    clusters = cluster(positions, subjects)[chosen] if subjects else None
    return ComparedRows(positions[chosen], old, candidate.take(chosen), clusters, segments)


def read_subjects(snapshot: ModelSnapshot, rows: list[Examples]) -> dict[int, bytes]:
    """By position: the subjects of rows that have one."""
    found: dict[int, bytes] = {}
    with snapshot.context.database.read() as session:
        for some in rows:
            found.update(bulk.subjects_at(session, snapshot.model_id, some.key.tolist()))
    return found


def draw_older(snapshot: ModelSnapshot, position: int) -> list[Examples]:
    """Holdout rows at or before a position that are not in the sample, if the sample has too few."""
    sampled = snapshot.holdout_positions
    earlier = int((sampled <= position).sum())
    with snapshot.context.database.read() as session:
        total = session.get_one(Model, snapshot.model_id).holdout_count
    if earlier >= MIN_OLD_ROWS or len(sampled) >= total:
        return []
    left = max(1, round(earlier * total / max(1, len(sampled))))
    database, spec = snapshot.context.database, snapshot.spec
    draw = LedgerDraw(database, snapshot.model_id, spec, position, snapshot.at, left, holdout=True)
    drawn = draw(MIN_OLD_ROWS, DRAW_SEED)
    new = np.flatnonzero(~np.isin(drawn.key.numpy(), sampled))
    return [drawn.take(torch.from_numpy(new))] if len(new) else []


def predict_as_of(snapshot: ModelSnapshot, version: Version, state: State, positions: NDArray[np.int64]) -> ScoredRows:
    """What an older version predicts for rows in the layout of its own position."""
    order = np.argsort(positions)
    rows = SampledRows(snapshot.context.database, snapshot.model_id, state.spec, version.position, positions[order])
    found, (scored,) = score([state], rows, MetricOptions.of(snapshot.policy))
    assert len(found) == len(positions), "a row that is in force now was in force at its own position"
    return scored.take(np.argsort(order))
