"""Examples without a label: what is stored with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.clock import now
from core.database import Database
from core.ledger import unlabelled_examples
from core.ledger.batch import Predicted
from core.tables.ledger import PendingExample
from core.tables.versions import Version, VersionState
from tests.core.jobs.rows import enter_version
from tests.core.ledger.reference_ledger import Row, add, batch, locked, new_model


@pytest.mark.parametrize("gone", [{"state": VersionState.PURGED}, {"purge_at": now()}])
def test_predictions_of_a_version_that_was_purged_meanwhile_are_not_stored(
    database: Database, gone: dict[str, object]
) -> None:
    """Simulated history: the service predicts, an erasure purges the version, the service stores the prediction."""
    model = new_model(database)
    add(database, model, [Row("a", split=False)])
    old, new = enter_version(database, model), enter_version(database, model)
    rows = replace(batch([Row("b")]), predicted=Predicted(old, np.array([[0.25]]), new, np.array([[0.75]])))
    with database.write() as session:
        version = session.get_one(Version, (model.id, old))
        for name, value in gone.items():
            setattr(version, name, value)
    locked(database, model, lambda session, row: unlabelled_examples.store(session, row.id, rows, np.array([False])))
    with database.read() as session:
        found = session.get_one(PendingExample, (model.id, "b"))
        assert (found.version, found.mean) == (None, None)
        assert (found.challenger, found.challenger_mean) == (new, np.array([0.75]).tobytes())
