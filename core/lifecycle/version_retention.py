"""Retention of versions: deletes the weights of old versions by the policy's `versions`. Called by the tick.

A version that is purged keeps its metrics and its entry in the history. Its file becomes an orphan, which the tick
deletes after the commit, and an event has the publisher delete its weights in MLflow. Each model stores the number of
its newest version at the last check, so a model without a new version costs one index lookup.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

import structlog
from sqlalchemy import Select, exists, select
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import AmendError
from core.ledger.quarantine import quarantined_versions
from core.models.policy import Policy, VersionsPolicy, duration, policy_of
from core.tables.jobs import Job, JobState
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import FIRST, Version, VersionKind, VersionState
from core.versions.purging import purge_weights
from core.versions.queries import first_served, newest_number, tip_of

MODELS_PER_TICK = 100
VERSIONS_PER_TRANSACTION = 100
"""Limits per tick, so that the rest of the tick does not wait for long. What is left is purged at the next tick."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = structlog.get_logger("core")


class Kept(NamedTuple):
    """What retention needs to know about a version that has its weights."""

    number: int
    kind: VersionKind
    state: VersionState
    position: int
    created_at: datetime


def prune_due(database: Database) -> int:
    """Purge the versions that the policies do not keep; returns how many.

    Models with a running job wait, because the job may read any of the versions.
    """
    with database.read() as session:
        ids = list(session.scalars(select_prunable()))
    count = 0
    for model_id in ids:
        try:
            count += prune(database, model_id)
        except AmendError as error:  # other models must not wait for this one
            log.warning("version_retention_failed", model=model_id, exc_info=error)
    return count


@cache  # building the statement takes longer than running it
def select_prunable() -> Select[int]:
    """Query for the ids of models that have a new version, and no running job."""
    newer = exists().where(Version.model_id == Model.id, Version.number > Model.pruned_version)
    busy = exists().where(Job.model_id == Model.id, Job.state == JobState.RUNNING)
    return select(Model.id).where(newer, ~busy).order_by(Model.id).limit(MODELS_PER_TICK)


def prune(database: Database, model_id: int) -> int:
    """Purge some versions of a model, in one transaction under its lock; returns how many."""
    with database.write() as session:
        model = session.get(Model, model_id, with_for_update=True)
        running = select(Job.id).where(Job.model_id == model_id, Job.state == JobState.RUNNING)
        if model is None or session.scalar(running.limit(1)) is not None:
            return 0
        found = find_unneeded(session, model, policy_of(model))
        for number in found[:VERSIONS_PER_TRANSACTION]:
            purge_weights(session, session.get_one(Version, (model.id, number)))
        if len(found) <= VERSIONS_PER_TRANSACTION:
            model.pruned_version = newest_number(session, model.id)
        purged = found[:VERSIONS_PER_TRANSACTION]
        if purged:
            enqueue_event(session, model, TrackingEventKind.PURGED)
            log.info("versions_pruned", model=model.name, versions=len(purged))
        return len(purged)


def find_unneeded(session: Session, model: Model, policy: Policy) -> list[int]:
    """Numbers of the versions whose weights the policy does not keep and nothing needs, oldest first."""
    if policy.versions is None:
        return []
    columns = (Version.number, Version.kind, Version.state, Version.position, Version.created_at)
    # a version that an erasure keeps for a while has a date of its own
    kept = select(*columns).where(Version.model_id == model.id, Version.state != VersionState.PURGED)
    versions = [Kept(*row) for row in session.execute(kept.where(Version.purge_at.is_(None)).order_by(Version.number))]
    if len(versions) <= policy.versions.keep:
        return []
    needed = choose_kept(versions, policy.versions) | find_needed(session, model, policy, versions)
    return [version.number for version in versions if version.number not in needed]


def choose_kept(versions: Sequence[Kept], policy: VersionsPolicy) -> set[int]:
    """Numbers of the newest versions, and of the first one in each interval before them, if possible one that served.

    The first one, because it stays the same when later versions of the interval follow.
    """
    chosen = {version.number for version in versions[-policy.keep :]}
    if policy.every is not None:
        length = duration(policy.every)
        intervals: dict[int, Kept] = {}
        served = (VersionState.CHAMPION, VersionState.SUPERSEDED)
        for version in sorted(versions[: -policy.keep], key=lambda v: (v.state not in served, v.number)):
            intervals.setdefault((version.created_at - EPOCH) // length, version)
        chosen.update(version.number for version in intervals.values())
    return chosen


def find_needed(session: Session, model: Model, policy: Policy, versions: Sequence[Kept]) -> set[int]:
    """Numbers of the versions that are in use, whatever the policy says."""
    tip = tip_of(session, model)
    frozen = first_served(session, model.id)  # test-then-train scores it if the first version is purged
    confirmed = first_served(session, model.id, model.confirmed or FIRST)
    trained = [version for version in versions if version.kind is VersionKind.TRAINED]
    newer = [v for v in versions if v.number > (model.champion or 0) and v.kind is VersionKind.ADAPTED]
    candidates = [version.number for version in newer if version.state is VersionState.CANDIDATE]
    undecided = quarantined_versions(session, model)
    # a rejected version without examples in quarantine can still be accepted while the tip is not ahead of it
    rejected = [v for v in versions if v.state is VersionState.REJECTED and (tip is None or v.position >= tip.position)]
    numbers = [FIRST, model.champion, model.tip, policy.challenger, *undecided, *(v.number for v in rejected)]
    numbers += [version.number for version in (frozen, confirmed) if version is not None]
    # the reference: the last full training, by position and, in MLflow, by number
    numbers += [max(trained, key=lambda v: v.position).number, trained[-1].number] if trained else []
    numbers += candidates[-1:]  # the challenger in MLflow
    return {number for number in numbers if number is not None}
