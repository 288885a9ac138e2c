"""The holdout rows on which the gate compares a draft with an older version, as both versions predict them."""

from __future__ import annotations

from itertools import chain

import numpy as np

from core.kprior import State
from core.promotion.gate import ComparedRows
from core.quality.clusters import cluster
from core.quality.compared_rows import draw_older, predict_as_of, read_subjects
from core.quality.known_classes import KnownClasses, only_known_labels
from core.quality.scored_rows import MetricOptions, concatenate
from core.quality.scoring import score
from core.quality.segments import split_into_segments
from core.quality.standard_errors import MIN_ROWS
from core.tables.versions import Version
from worker.versions.snapshot import ModelSnapshot


def compare_rows(snapshot: ModelSnapshot, draft: State, version: Version, state: State) -> ComparedRows:
    """The sample of the holdout, and older rows if it has few, as a draft and an older version predict them.

    A version with other columns or classes predicts the rows as they were at its position; newer rows are left out.
    Older rows are compared among the classes, and all rows by the labels, that the older version had examples of.
    """
    options, same_schema = MetricOptions.of(snapshot.policy), snapshot.has_schema_of(state)
    database, model_id = snapshot.context.database, snapshot.model_id
    with database.read() as session:
        known = KnownClasses.of(session, model_id, version, state.spec, snapshot.spec, snapshot.at)
    positions, candidate = snapshot.holdout_positions, snapshot.predict_holdout(draft)
    old = snapshot.predict_holdout(state) if same_schema else None
    older = draw_older(database, model_id, snapshot.spec, snapshot.at, version.position, positions)
    if older:
        more, (scored, *rest) = score([draft, state] if same_schema else [draft], older, options)
        positions, candidate = np.concatenate([positions, more]), concatenate([candidate, scored])
        old = None if old is None else concatenate([old, *rest])
    chosen, own = np.ones(len(positions), bool), None
    if known is not None:
        earlier, rows, own = positions <= version.position, [*snapshot.holdout, *older], known.own
        chosen = known.has(candidate.y) | ~earlier
        candidate = known.restrict(candidate, draft, rows, earlier, options)
        old = None if old is None else known.restrict(old, state, rows, earlier, options)
    if old is None:
        chosen &= positions <= version.position
        old = predict_as_of(database, model_id, state, version.position, positions[chosen], options, own)
    else:
        old = old.take(chosen)
    with database.read() as session:
        old = only_known_labels(session, model_id, version, state.spec, old)
    data, columns = chain(snapshot.holdout, older), snapshot.policy.segments
    segments = [segment.take(chosen) for segment in split_into_segments(snapshot.spec, columns, data, MIN_ROWS)]
    clusters = snapshot.holdout_clusters
    if older:
        subjects = snapshot.holdout_subjects | read_subjects(database, model_id, older)
        clusters = cluster(positions, subjects) if subjects else None
    clusters = None if clusters is None else clusters[chosen]
    return ComparedRows(positions[chosen], old, candidate.take(chosen), clusters, segments)
