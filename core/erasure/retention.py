"""Retention: examples older than the policy's `expire` are removed, like by a request.

An example's age is that of the change that brought it: of its correction, if it was corrected, or of its return.
Changes come in the order of their positions, so each model remembers up to which one its examples are expired, and the
next look begins there, however long the ledger. Called by the tick.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import Database, now
from core.erasure.restrictions import lift_restrictions_until
from core.errors import AmendError
from core.jobs import queue
from core.ledger.removals import remove_span
from core.models.policy import duration, policy_of
from core.tables.ledger import Change
from core.tables.models import Model

POSITIONS_PER_TRANSACTION = 5_000
"""At most."""
TRANSACTIONS_PER_TICK = 5
"""For each model: other models, and the rest of the tick, must not wait for long."""
STEPS_PER_LIFETIME = 1_000
"""Expired examples are removed in so many steps of a lifetime: a model whose examples come one by one should not be
adapted again for each that expires."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = structlog.get_logger("core")


def expire_due(database: Database) -> int:
    """Remove the examples that have expired by the policies; returns how many."""
    moment, count = now(), 0
    with database.read() as session:
        limited = session.scalars(select(Model).where(Model.policy["expire"].as_string().is_not(None)))
        ids = [model.id for model in limited if expired_until(session, model, moment) > model.expired]
    for model_id in ids:
        try:
            for _ in range(TRANSACTIONS_PER_TICK):
                removed = expire_some(database, model_id, moment)
                if removed is None:
                    break
                count += removed
        except AmendError as error:  # other models must not wait for this one
            log.warning("what is too old in a model could not be removed", model=model_id, exc_info=error)
    return count


def expire_some(database: Database, model_id: int, moment: datetime) -> int | None:
    """Remove some expired examples, in one transaction; returns how many, or None if there are none.

    Decided under the model's lock: of several schedulers one does it.
    """
    with database.write() as session:
        model = session.get(Model, model_id, with_for_update=True)
        until = expired_until(session, model, moment) if model else 0
        if model is None or until <= model.expired:
            return None
        lift_restrictions_until(session, model, until)
        removed = remove_span(session, model, model.expired, until)
        model.expired = until
        if removed:
            queue.enqueue_adaptation(session, model, None)
            log.info("examples have expired", model=model.name, examples=removed, until=until)
        return removed


def expired_until(session: Session, model: Model, moment: datetime) -> int:
    """The position up to which all examples have expired, or as far as one transaction goes."""
    every = policy_of(model).expire
    if every is None:
        return model.expired
    length = duration(every)
    step = length / STEPS_PER_LIFETIME
    came_before = EPOCH + (moment - length - EPOCH) // step * step
    runs = select(Change.last, Change.created_at).where(Change.model_id == model.id, Change.last > model.expired)
    runs, until = runs.order_by(Change.last), model.expired
    for limit in (1, POSITIONS_PER_TRANSACTION):  # as a rule, one is enough to see that there is nothing to do
        found = session.execute(runs.limit(limit))
        old = [run.last for run in takewhile(lambda run: run.created_at <= came_before, found)]
        if not old:
            break
        until = min(old[-1], model.expired + POSITIONS_PER_TRANSACTION)
    return until
