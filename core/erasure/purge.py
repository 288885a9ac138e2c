"""Purging rows, versions and figures of erased people and removed examples, and finding traces that are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import sqlalchemy as sa
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from core.database import now, rows_changed
from core.erasure.queries import must_be_purged, open_parts
from core.erasure.receipt_text import Trace
from core.jobs.queries import has_unfinished
from core.ledger.queries import batched
from core.models.policy import duration, policy_of
from core.tables.bookkeeping import OrphanFile
from core.tables.erasures import Erasure, ErasureState, Part
from core.tables.figures import AuditFigures, CandidateFigures
from core.tables.jobs import JobKind
from core.tables.ledger import HAS_CONTENT, Example, HoldoutSample
from core.tables.models import Model
from core.tables.tracking import TrackingEventKind, enqueue_event
from core.tables.versions import FIRST, Comparison, Version, VersionState
from core.tables.webhooks import WebhookEvent
from core.versions.knowledge import knows, never_knew
from core.versions.privacy_rounding import significant
from core.versions.queries import kept_versions
from core.versions.store import Store
from core.webhooks.events import emit


def purge_versions(session: Session, model: Model, part: Part) -> None:
    """Purge the versions that knew the person, or set the date when they will be purged; and imported weights."""
    from core.versions import imports  # it imports torch, which the scheduler does not need

    imports.drop(session, model.id)
    keep = policy_of(model).erasure.keep_superseded
    forget_figures(session, part)
    found = session.scalars(select(Version).where(must_be_purged(part), Version.state != VersionState.PURGED)).all()
    if keep is None:
        for version in found:
            discard(session, version)
        return
    for version in found:
        version.purge_at = version.purge_at or now() + duration(keep)


def discard(session: Session, version: Version) -> None:
    """Purge a version: only its entry in the history remains."""
    version.state, version.purge_at = VersionState.PURGED, None
    drop_figures(version)
    session.merge(OrphanFile(path=version.file))


def versions_to_purge(session: Session, model_id: int) -> list[Version]:
    """Versions that were kept for a while after an erasure, and are due to be purged."""
    over = (Version.model_id == model_id, Version.purge_at <= now(), Version.state != VersionState.PURGED)
    return list(session.scalars(select(Version).where(*over)))


def purge_removed(session: Session, model: Model) -> int:
    """Delete all removed examples that every version has forgotten; returns how many.

    Of an example that an older version still knows, the person's hash and the positions stay: should the person ask to
    be forgotten, they tell which versions must go.
    """
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return 0
    known = sa.exists().where(
        Version.model_id == model.id,
        Version.state != VersionState.PURGED,
        Version.position >= Example.position,
        Version.position < Example.removed,
    )
    kept = (unneeded, Example.subject.is_not(None), known)
    blank = update(Example).where(*kept, HAS_CONTENT).values(x=b"", y=0.0, id="", weight=None)
    rest = delete(Example).where(unneeded, sa.or_(Example.subject.is_(None), ~known))
    return rows_changed(session, blank) + rows_changed(session, rest)


def has_removed_examples(session: Session, model: Model) -> bool:
    """Whether there is anything for `purge_removed` to delete."""
    unneeded = select_unneeded(session, model)
    if unneeded is None:
        return False
    return session.scalar(select(Example.position).where(unneeded, HAS_CONTENT).limit(1)) is not None


def select_unneeded(session: Session, model: Model) -> sa.ColumnElement[bool] | None:
    """Condition on removed examples that are not needed any more; None while a job may be reading them."""
    if has_unfinished(session, model.id, JobKind.ADAPT, JobKind.RETRAIN):
        return None
    numbers = [number for number in (model.champion, model.tip) if number]
    serving = select(func.min(Version.position)).where(Version.model_id == model.id, Version.number.in_(numbers))
    position: int | None = session.scalar(serving) if numbers else None
    removed = Example.removed <= (model.head if position is None else position)
    return sa.and_(Example.model_id == model.id, removed, Example.position.not_in(withheld_positions(session, model)))


def withheld_positions(session: Session, model: Model) -> sa.BindParameter[Any]:
    """Positions of examples that must be kept: a request to erase them is held, and may be refused."""
    held = select(Part.restricted).join(Erasure, Erasure.id == Part.erasure_id)
    found = session.scalars(held.where(Part.model_id == model.id, Erasure.state == ErasureState.HELD))
    positions = [position for positions in found for position in positions]
    # as literals: SQLite allows no more than 32 766 parameters
    return sa.bindparam("withheld", positions, sa.BigInteger, expanding=True, literal_execute=True)


def delete_examples(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """Delete examples by position; returns how many."""
    if count_sampled(session, model_id, positions):  # the adaptation saw to it, unless nothing was left to adapt to
        session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model_id))
    count = 0
    for some in batched(positions):
        count += rows_changed(session, delete(Example).where(Example.model_id == model_id, Example.position.in_(some)))
    return count


def count_sampled(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many of these positions are in the model's sample of the holdout."""
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
        if FIRST in gone and version.evaluation and "frozen" in version.evaluation:
            evaluation = version.evaluation.copy()
            del evaluation["frozen"]
            version.evaluation = evaluation
        audit = version.certificate.get("audit") if version.certificate else None
        if version.parent in gone and version.certificate and audit:
            before = {name: None for name in audit if name.endswith(("_before", "_error"))}
            version.certificate = {**version.certificate, "audit": cast(AuditFigures, {**audit, **before})}
    known = knows(part, Comparison.position)
    sides = sa.or_(Comparison.adapted.in_(gone), Comparison.retrained.in_(gone))
    session.execute(delete(Comparison).where(Comparison.model_id == part.model_id, sa.or_(known, sides)))


def drop_figures(version: Version) -> None:
    """Delete a version's figures and certificate, and its file's hash, by which a guess could be checked.

    What it cost stays, for plans are made from that, to one digit: the exact figures depend on every example.
    """
    version.sha256 = ""
    version.cost = {name: significant(float(value), 1) for name, value in version.cost.items()}
    candidates = version.evaluation.get("candidates", []) if version.evaluation else []
    tried: list[CandidateFigures] = [{**found, "objection": ""} for found in candidates]
    version.metrics, version.certificate = {}, None
    version.evaluation = {"candidates": tried} if tried else None


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
    about = (Example.model_id == part.model_id, Example.subject == subject, Example.position <= part.removed)
    purged = session.scalars(select(Version.file).where(must_be_purged(part), Version.state == VersionState.PURGED))
    return {
        Trace.BY_POSITION.value: rows,
        Trace.BY_PERSON.value: session.scalar(select(func.count()).where(*about)) or 0,
        Trace.PURGED_FILES.value: sum(store.exists(file) for file in purged),
        Trace.ORPHANS.value: orphans,
        Trace.SAMPLE.value: count_sampled(session, part.model_id, part.positions),
        Trace.MEMORY.value: len(remembered.intersection(part.positions)),
    }


def withdraw(session: Session, model: Model) -> None:
    """Withdraw a model without examples: it predicts no more, and versions that knew an erased person are purged."""
    if model.champion is not None:  # it may be withdrawn already: steps are repeated
        emit(session, WebhookEvent.MODEL_WITHDRAWN, model=model.name, version=model.champion)
    model.champion = model.tip = None
    session.execute(delete(HoldoutSample).where(HoldoutSample.model_id == model.id))
    parts = [part for part, _ in open_parts(session, model.id)]
    for version in kept_versions(session, model.id):
        if not all(never_knew(part, version.position) for part in parts):
            discard(session, version)
        elif version.state is VersionState.CHAMPION:
            version.state = VersionState.SUPERSEDED
    enqueue_event(session, model, TrackingEventKind.ALIASES)
