"""Recorded predictions: inputs that were predicted are stored as examples without a label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sqlalchemy.orm import Session

from core.ledger import pending
from core.ledger.additions import Added, add_locked
from core.ledger.batch import Batch
from core.ledger.specs import layout_at
from core.models.policy import policy_of
from core.tables.models import Model
from core.tables.versions import Version


def record_predictions(session: Session, model: Model, batch: Batch) -> Added:
    """Store the inputs of a batch, which are in the layout of the version that predicted, in a locked model.

    Raises Conflict if one of the ids is in use with different content. Nothing of the batch is stored.
    """
    assert batch.predicted is not None
    version = session.get_one(Version, (model.id, batch.predicted.version))
    since = pending.layout_position_at(session, model, version.position)
    if since < model.layout_position:  # the version is older than a change of columns or classes
        layout = layout_at(session, model.id, model.head)
        rows = np.full(len(batch), since + 1)
        recoded = any(step.target is not None and step.position > since for step in layout.steps)
        x = layout.convert(rows, np.zeros(len(batch)), batch.features)[1]
        batch = replace(batch, x=x, predicted=None if recoded else batch.predicted)
    batch = replace(batch, layout_position=model.layout_position)
    return add_locked(session, model.id, policy_of(model).holdout_draw, batch)
