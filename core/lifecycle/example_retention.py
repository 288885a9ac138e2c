"""Retention: removes examples that are older than the policy's `expire`, as a removal request would.

Quarantined examples expire as well. The age of an example counts from the change that added, corrected or restored it.
Changes are ordered by position, so each model stores the position up to which its examples have expired, and the next
check starts there, however long the ledger is. Called by the tick.
"""

from datetime import UTC, datetime
from itertools import takewhile

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database
from core.errors import AmendError
from core.jobs import queue
from core.ledger import quarantine, unlabelled_examples
from core.ledger.removals import take_out_matching
from core.ledger.restrictions import lift_restrictions_until
from core.models.policy import duration, policy_of
from core.tables.ledger import Change, Example, PendingExample
from core.tables.models import Model

POSITIONS_PER_TRANSACTION = 5_000
TRANSACTIONS_PER_TICK = 5
"""Limit per model, so that other models and the rest of the tick do not wait for long."""
STEPS_PER_LIFETIME = 1_000
"""Examples expire in steps of a thousandth of the period, so that a model whose examples arrived one by one is not
adapted again for every single one."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = structlog.get_logger("core")


def expire_due(database: Database) -> int:
    """Remove the examples that have expired under their models' policies; returns how many."""
    moment, count = now(), 0
    with database.read() as session:
        limited = session.scalars(select(Model).where(Model.policy["expire"].as_string().is_not(None)))
        models = list(limited)
        ids = [model.id for model in models if expired_until(session, model, moment) > model.expired_position]
        waiting = [
            model.id for model in models if unlabelled_examples.has_older(session, model.id, cutoff(model, moment))
        ]
    for model_id in waiting:
        with database.write() as session:
            model = session.get(Model, model_id, with_for_update=True)
            if model is not None and policy_of(model).expire is not None:
                count += unlabelled_examples.drop(session, model.id, PendingExample.created_at <= cutoff(model, moment))
    for model_id in ids:
        try:
            for _ in range(TRANSACTIONS_PER_TICK):
                removed = expire_some(database, model_id, moment)
                if removed is None:
                    break
                count += removed
        except AmendError as error:  # other models must not wait for this one
            log.warning("expiry_failed", model=model_id, exc_info=error)
    return count


def expire_some(database: Database, model_id: int, moment: datetime) -> int | None:
    """Remove some expired examples, in one transaction; returns how many, or None if there are none.

    The decision is made under the model's lock, so that only one of several schedulers does it.
    """
    with database.write() as session:
        model = session.get(Model, model_id, with_for_update=True)
        until = expired_until(session, model, moment) if model else 0
        if model is None or until <= model.expired_position:
            return None
        lift_restrictions_until(session, model, until)
        expired = Example.position.between(model.expired_position + 1, until)
        removed = take_out_matching(session, model, expired)
        quarantined = quarantine.release_matching(session, model, expired)
        model.expired_position = until
        if removed:
            queue.enqueue_adaptation(session, model, None)
        if removed or quarantined:
            log.info("examples_expired", model=model.name, examples=removed + quarantined, until=until)
        return removed + quarantined


def cutoff(model: Model, moment: datetime) -> datetime:
    """The time before which the examples of a model with a retention period have expired."""
    length = duration(policy_of(model).expire or "3650d")
    step = length / STEPS_PER_LIFETIME
    return EPOCH + (moment - length - EPOCH) // step * step


def expired_until(session: Session, model: Model, moment: datetime) -> int:
    """The position up to which all examples have expired, or as far as one transaction goes."""
    every = policy_of(model).expire
    if every is None:
        return model.expired_position
    came_before = cutoff(model, moment)
    runs = select(Change.last, Change.created_at).where(
        Change.model_id == model.id, Change.last > model.expired_position
    )
    runs, until = runs.order_by(Change.last), model.expired_position
    for limit in (1, POSITIONS_PER_TRANSACTION):  # usually the first change shows that nothing has expired
        found = session.execute(runs.limit(limit))
        old = [run.last for run in takewhile(lambda run: run.created_at <= came_before, found)]
        if not old:
            break
        until = min(old[-1], model.expired_position + POSITIONS_PER_TRANSACTION)
    return until
