"""The outlook of a model: when its policy will next make jobs due. For the pages."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from core.jobs.due_jobs import find_backlog, retrain_due
from core.models.policy import duration, policy_of
from core.tables.models import Model
from core.versions.queries import last_trained, tip_of


@dataclass(frozen=True)
class Outlook:
    """The next adaptation is due at a time or after a number of changes, whichever comes first; None: no such rule."""

    adapt_at: datetime | None = None
    adapt_after: int | None = None
    retrain_at: datetime | None = None
    """Also None while nothing has changed since the last retrain."""


def find_outlook(session: Session, model: Model, moment: datetime) -> Outlook:
    """When the next jobs are due. Before the first training only that is; while the model is held nothing is."""
    tip, policy = tip_of(session, model), policy_of(model)
    if model.held_at is not None or (tip is not None and model.train_count == 0):
        return Outlook()
    waiting = find_backlog(session, model, tip.position if tip else 0)
    at = after = retrain_at = None
    if tip is not None and policy.adapt.every is not None and waiting.since is not None:
        at = max(moment, waiting.since + duration(policy.adapt.every))
    if policy.adapt.after_changes is not None:
        after = max(0, policy.adapt.after_changes - waiting.count)
    if tip is None:
        return Outlook(adapt_after=after)
    last = last_trained(session, model.id)
    if policy.retrain.every is not None and (last is None or last.position < model.head):
        every = duration(policy.retrain.every)
        retrain_at = model.created_at + ((moment - model.created_at) // every + 1) * every
        due_at, _ = retrain_due(session, model, every, moment)
        retrain_at = retrain_at if due_at is None else moment
    return Outlook(at, after, retrain_at)
