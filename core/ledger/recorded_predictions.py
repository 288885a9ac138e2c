"""Recorded predictions: inputs that were predicted are stored as examples without a label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sqlalchemy.orm import Session

from core.ledger import unlabelled_examples
from core.ledger.additions import Added, add_locked
from core.ledger.batch import Batch
from core.ledger.returning_subjects import NONE, check_treatment
from core.ledger.spec_history import layout_at
from core.models.policy import policy_of
from core.suppressions import NOBODY, Screen
from core.tables.models import Model
from core.tables.versions import Version


def record_predictions(session: Session, model: Model, batch: Batch, screen: Screen | None = None) -> Added:
    """Store the inputs of a batch, which are in the layout of the version that predicted, in a locked model.

    Raises Conflict if one of the ids is in use with different content, or if a returning person is refused. Nothing of
    the batch is stored.
    """
    assert batch.predicted is not None
    screened = NOBODY if screen is None else screen.check_now(session, batch.subjects)
    returning = NONE if screen is None else check_treatment(screened, screen.treatment, "subjects")
    version = session.get_one(Version, (model.id, batch.predicted.version))
    since = unlabelled_examples.layout_position_at(session, model, version.position)
    if since < model.layout_position:  # the version is older than a change of columns or classes
        layout = layout_at(session, model.id, model.head)
        rows = np.full(len(batch), since + 1)
        recoded = any(step.target is not None and step.position > since for step in layout.steps)
        _, x, unseen = layout.convert(rows, np.zeros(len(batch)), batch.features, batch.unseen)
        batch = replace(batch, x=x, unseen=unseen, predicted=None if recoded else batch.predicted)
    batch = replace(batch, layout_position=model.layout_position)
    return add_locked(session, model.id, policy_of(model).holdout_draw, batch, returning=returning)
