"""Purging what a database, store and version history contain about an erased person, and counting what is left."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.clock import now
from core.database import Database, rows_changed
from core.erasure.queries import must_be_purged
from core.erasure.receipt_text import Trace, describe_cleanup
from core.ledger import labels, pending, quarantine
from core.ledger.queries import batched
from core.models.policy import duration, policy_of
from core.quality.drift_records import forget_report
from core.quality.forgetting import forget_versions, round_windows
from core.tables.erasures import Part
from core.tables.ledger import Example, HoldoutSample, PendingExample
from core.tables.models import Model
from core.tables.versions import FIRST, Comparison, Version, VersionState
from core.vacuum import vacuum
from core.versions.erased_examples import has_examples_at
from core.versions.purging import drop_figures, purge_version
from core.versions.store import Store


def purge_versions(session: Session, model: Model, part: Part) -> None:
    """Purge the versions trained on the person's data, or set their purge date; drop imported weights."""
    from core.versions import imports  # imports torch, which the scheduler does not need

    imports.drop(session, model.id)
    keep = policy_of(model).erasure.keep_superseded
    forget_figures(session, part)
    found = session.scalars(select(Version).where(must_be_purged(part), Version.state != VersionState.PURGED)).all()
    if keep is None:
        for version in found:
            purge_version(session, version)
        return
    for version in found:
        version.purge_at = version.purge_at or now() + duration(keep)


def delete_examples(session: Session, model: Model, positions: Sequence[int]) -> int:
    """Delete examples by position; returns how many."""
    model_id = model.id
    quarantine.release(session, model, positions)
    forget_report(session, model_id)
    if count_sampled(session, model_id, positions):  # the adaptation replaces it, if there was one
        session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model_id))
    count = 0
    labels.forget_predictions(session, model_id, positions)
    for some in batched(positions):
        count += rows_changed(session, delete(Example).where(Example.model_id == model_id, Example.position.in_(some)))
    return count


def delete_pending(session: Session, model: Model, subject: bytes | None) -> int:
    """Delete the examples of a person without a label that the erasure restricts; returns how many."""
    return pending.drop(session, model.id, PendingExample.subject == subject, PendingExample.restricted.is_(True))


def count_sampled(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many of the positions are in the model's sample of the holdout."""
    kept = session.scalar(select(HoldoutSample.positions).where(HoldoutSample.model_id == model_id))
    return int(np.isin(positions, np.frombuffer(kept, np.int64)).sum()) if kept else 0


def forget_figures(session: Session, part: Part) -> None:
    """Delete the figures that the person contributed to: a single row can be computed from the figures of two versions.

    Also those that other versions have of weights which knew the person: whoever guesses the person's example could
    train on the guess, and see whether the figures come out the same.
    """
    gone = set(session.scalars(select(Version.number).where(must_be_purged(part))))
    for version in session.scalars(select(Version).where(Version.model_id == part.model_id)):
        if version.number in gone:
            drop_figures(version)
            continue
        if version.gate is not None:
            version.gate = forget_versions(version.gate, gone)
        if FIRST in gone and version.evaluation and "frozen" in version.evaluation:
            evaluation = version.evaluation.copy()
            del evaluation["frozen"]
            version.evaluation = evaluation
        audit = version.certificate.audit if version.certificate else None
        if version.parent in gone and version.certificate and audit:
            names = [field.name for field in fields(audit) if field.name.endswith(("_before", "_error"))]
            before: dict[str, Any] = dict.fromkeys(names)
            version.certificate = replace(version.certificate, audit=replace(audit, **before))
    round_windows(session, part.model_id, gone, part.positions)
    known = has_examples_at(part, Comparison.position)
    sides = sa.or_(Comparison.adapted.in_(gone), Comparison.retrained.in_(gone))
    session.execute(delete(Comparison).where(Comparison.model_id == part.model_id, sa.or_(known, sides)))


def find_traces(
    session: Session, store: Store, part: Part, subject: bytes | None, remembered: set[int], orphans: int
) -> dict[str, int]:
    """Counts of what is left of the person: all must be 0.

    The champion's memory and the number of files without a version are passed in: they are the same for all people of
    a model.
    """
    rows = 0
    for some in batched(part.positions):
        query = select(func.count()).where(Example.model_id == part.model_id, Example.position.in_(some))
        rows += session.scalar(query) or 0
    rows += labels.count_predictions(session, part.model_id, part.positions)
    waiting = pending.count_restricted(session, part.model_id, subject)
    about = (Example.model_id == part.model_id, Example.subject == subject, Example.position <= part.removal_position)
    purged = session.scalars(select(Version.file).where(must_be_purged(part), Version.state == VersionState.PURGED))
    return {
        Trace.BY_POSITION.value: rows,
        Trace.BY_PERSON.value: (session.scalar(select(func.count()).where(*about)) or 0) + waiting,
        Trace.PURGED_FILES.value: sum(store.exists(file) for file in purged),
        Trace.ORPHANS.value: orphans,
        Trace.SAMPLE.value: count_sampled(session, part.model_id, part.positions),
        Trace.MEMORY.value: len(remembered.intersection(part.positions)),
    }


def vacuum_database(database: Database) -> str:
    """Vacuum the database; returns a description for the receipt."""
    return describe_cleanup(database.sqlite, *vacuum(database))
