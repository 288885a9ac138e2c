"""Removals of whole loads: one statement, however many examples they have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from sqlalchemy import func, select

from core import ledger
from core.database import Database
from core.ledger.batch import Batch
from core.ledger.removal_selections import remove_source
from core.tables.ledger import Example
from tests.core.ledger.reference_ledger import DRAW, gap_free, locked, new_model, runs, stored

LARGE = 100_000


def test_a_large_load_is_removed_in_one_transaction(database: Database) -> None:
    model = new_model(database)
    ids, x = pa.array([f"i{i}" for i in range(LARGE)]), np.zeros((LARGE, 2), np.float32)
    sources = ["monday"] * LARGE
    ledger.add(
        database, model.id, DRAW, Batch(ids, [None] * LARGE, x, np.zeros(LARGE), [None] * LARGE, sources=sources)
    )
    assert (
        locked(database, model, lambda session, model: remove_source(session, model, "monday").removal.removed) == LARGE
    )
    now = stored(database, model)
    assert (now.head, now.train_count, now.holdout_count, now.removed_count) == (2 * LARGE, 0, 0, LARGE)
    assert gap_free(runs(database, model), now.head)
    with database.read() as session:
        shift = Example.removed - Example.position
        ours = select(func.min(shift), func.max(shift)).where(Example.model_id == model.id)
        assert session.execute(ours).one() == (LARGE, LARGE)
