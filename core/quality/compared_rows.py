"""Holdout rows that the gate needs beyond the sample: older rows, and rows as an older version saw them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.database import Database
from core.kprior import Examples, State
from core.kprior.model.spec import Spec
from core.ledger import bulk
from core.ledger.holdout_sample import SampledRows
from core.ledger.random_rows import LedgerDraw
from core.quality.scored_rows import MetricOptions, ScoredRows
from core.quality.scoring import score
from core.tables.models import Model

MIN_OLD_ROWS = 1_000
"""Rows at or before the older version's position. If the sample has fewer, because most of the holdout is newer, more
are drawn from the ledger, so that the comparison does not end as the ledger grows."""
DRAW_SEED = 31
Positions = NDArray[np.int64]


def draw_older(
    database: Database, model_id: int, spec: Spec, at: int, until: int, sampled: Positions
) -> list[Examples]:
    """Holdout rows up to the position `until` that are in force at `at` and not in the sample, if it has too few."""
    earlier = int((sampled <= until).sum())
    if earlier >= MIN_OLD_ROWS:
        return []
    with database.read() as session:
        total = session.get_one(Model, model_id).holdout_count
    if len(sampled) >= total:
        return []
    left = max(1, round(earlier * total / max(1, len(sampled))))
    drawn = LedgerDraw(database, model_id, spec, until, at, left, holdout=True)(MIN_OLD_ROWS, DRAW_SEED)
    new = np.flatnonzero(~np.isin(drawn.key.numpy(), sampled))
    return [drawn.take(torch.from_numpy(new))] if len(new) else []


def read_subjects(database: Database, model_id: int, rows: Sequence[Examples]) -> dict[int, bytes]:
    """By position: the subjects of rows that have one."""
    found: dict[int, bytes] = {}
    with database.read() as session:
        for some in rows:
            found.update(bulk.subjects_at(session, model_id, some.key.tolist()))
    return found


def predict_as_of(
    database: Database,
    model_id: int,
    state: State,
    at: int,
    positions: Positions,
    options: MetricOptions,
    classes: Tensor | None = None,
) -> ScoredRows:
    """What a version at the position `at` predicts for rows in the layout of its own position; `classes` as in
    `score`."""
    order = np.argsort(positions)
    rows = SampledRows(database, model_id, state.spec, at, positions[order])
    found, (scored,) = score([state], rows, options, classes)
    assert len(found) == len(positions), "a row that is in force now was in force at its own position"
    return scored.take(np.argsort(order))
