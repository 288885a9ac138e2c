"""Purging what a database, store and version history contain about an erased person, and counting what is left."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.analyses.records import count_before
from core.clock import now
from core.database import Database
from core.erasure.receipt_text import Trace, describe_cleanup
from core.erasure.subject_examples import count_examples
from core.erasure.version_fates import must_be_purged
from core.ledger import encodings, journal, labels, quarantine, unlabelled_examples
from core.ledger.queries import batched
from core.models.policy import duration, policy_of
from core.quality.drift_records import forget_report
from core.quality.erased_records import forget_versions, round_windows
from core.register import log
from core.register.records import SYSTEM
from core.tables.erasures import ErasureState, Part
from core.tables.ledger import Example, HoldoutSample, PendingExample
from core.tables.models import Model
from core.tables.register import RecordKind
from core.tables.versions import FIRST, Comparison, Version, VersionState
from core.vacuum import vacuum_now
from core.versions.erased_examples import has_examples_at
from core.versions.purging import drop_figures, purge_version
from core.versions.store import Store


def purge_versions(session: Session, model: Model, part: Part) -> None:
    """Purge the versions trained on the person's data, or set their purge date; drop imported weights."""
    from core.versions import imported_weights  # imports torch, which the scheduler does not need

    imported_weights.drop(session, model.id)
    keep = policy_of(model).erasure.keep_superseded
    forget_figures(session, part)
    for version in session.scalars(select(Version).where(must_be_purged(part))).all():
        # of versions that the policy's retention purged, metrics and recorded predictions are left
        if keep is None or version.state is VersionState.PURGED:
            record_purges(session, [version])
            purge_version(session, version)
        else:
            version.purge_at = version.purge_at or now() + duration(keep)


def record_purges(session: Session, versions: Sequence[Version]) -> None:
    """Record in the register which of the versions that are purged now had been kept after earlier erasures."""
    for version in versions:
        if version.purge_at is None:
            continue
        kept_after = select(Part).where(Part.model_id == version.model_id, Part.state == ErasureState.COMPLETED)
        for part in session.scalars(kept_after):
            query = select(Version.number).where(must_be_purged(part), Version.number == version.number)
            if session.scalar(query) is not None:
                place = {"model": part.model, "version": version.number}
                log.record(session, RecordKind.PURGED, SYSTEM, part.erasure_id, **place)


def delete_examples(session: Session, model: Model, positions: Sequence[int]) -> int:
    """Delete examples by position; returns how many different ones there were."""
    model_id = model.id
    quarantine.release(session, model, positions)
    forget_report(session, model_id)
    if count_sampled(session, model_id, positions):  # the adaptation replaces it, if there was one
        session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model_id))
    count = count_examples(session, model_id, positions)
    labels.forget_predictions(session, model_id, positions)
    encodings.forget(session, model_id, positions)
    for some in batched(positions):
        journal.forget_contents(session, model_id, Example.position.in_(some))
        session.execute(delete(Example).where(Example.model_id == model_id, Example.position.in_(some)))
    return count


def delete_pending(session: Session, model: Model, subjects: Sequence[bytes]) -> int:
    """Delete the examples of a person without a label that the erasure restricts; returns how many."""
    ours = PendingExample.subject.in_(subjects)
    return unlabelled_examples.drop(session, model.id, ours, PendingExample.restricted.is_(True))


def count_sampled(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many of the positions are in the model's sample of the holdout."""
    kept = session.scalar(select(HoldoutSample.positions).where(HoldoutSample.model_id == model_id))
    return int(np.isin(positions, np.frombuffer(kept, np.int64)).sum()) if kept else 0


def forget_figures(session: Session, part: Part) -> None:
    """Delete the figures that the person contributed to: a single row can be computed from the figures of two versions.

    Also figures of other versions about weights trained on the person's data: whoever guesses the person's example
    could train on the guess, and see whether the figures come out the same.
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
    session: Session, store: Store, part: Part, subjects: Sequence[bytes], remembered: set[int], orphans: int
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
    rows += encodings.count_at(session, part.model_id, part.positions)
    waiting = unlabelled_examples.count_restricted(session, part.model_id, subjects)
    theirs = (Example.model_id == part.model_id, Example.subject.in_(subjects))
    about = (*theirs, Example.position <= part.removal_position)
    purged = session.scalars(select(Version.file).where(must_be_purged(part), Version.state == VersionState.PURGED))
    return {
        Trace.BY_POSITION.value: rows,
        Trace.BY_PERSON.value: (session.scalar(select(func.count()).where(*about)) or 0) + waiting,
        Trace.PURGED_FILES.value: sum(store.exists(file) for file in purged),
        Trace.ORPHANS.value: orphans,
        Trace.SAMPLE.value: count_sampled(session, part.model_id, part.positions),
        Trace.MEMORY.value: len(remembered.intersection(part.positions)),
        Trace.ANALYSES.value: count_before(session, part.model_id, part.removal_position),
    }


def vacuum_database(database: Database) -> str:
    """Vacuum the database; returns a description for the receipt."""
    return describe_cleanup(database.sqlite, *vacuum_now(database))
