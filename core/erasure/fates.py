"""Which versions have to go for a person, which stay and why, and what becomes of their figures."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.tables.erasures import Part
from core.tables.versions import Comparison, Version, VersionState
from core.versions.rounding import significant

FIRST = 1
"""The version that later ones are held against, had nothing been done."""


def knew(part: Part) -> sa.ColumnElement[bool]:
    """Versions that stand for the ledger while it had the person's examples."""
    at = Version.position
    return sa.and_(Version.model_id == part.model_id, at >= part.first, at < part.removed)


def doomed(part: Part) -> sa.ColumnElement[bool]:
    """Versions that go: those that knew the person, and those made from them before one was shown to have forgotten."""
    unproven = sa.and_(Version.model_id == part.model_id, Version.position >= part.first)
    return sa.or_(knew(part), sa.and_(unproven, Version.number < (part.version or 0)))


def forget_figures(session: Session, part: Part) -> None:
    """Drop the figures that the person had a share in: a single row can be told from two versions' figures.

    Also those that other versions have of weights which knew the person: whoever guesses the person's example could
    train on the guess, and see whether the figures come out the same.
    """
    gone = set(session.scalars(select(Version.number).where(doomed(part))))
    for version in session.scalars(select(Version).where(Version.model_id == part.model_id)):
        if version.number in gone:
            drop_figures(version)
            continue
        if FIRST in gone and "frozen" in (version.evaluation or {}):
            version.evaluation = {name: v for name, v in (version.evaluation or {}).items() if name != "frozen"}
        audit = (version.certificate or {}).get("audit")
        if version.parent in gone and audit:
            before = {name: None for name in audit if name.endswith(("_before", "_error"))}
            version.certificate = {**(version.certificate or {}), "audit": {**audit, **before}}
    known = sa.and_(Comparison.position >= part.first, Comparison.position < part.removed)
    sides = sa.or_(Comparison.adapted.in_(gone), Comparison.retrained.in_(gone))
    session.execute(delete(Comparison).where(Comparison.model_id == part.model_id, sa.or_(known, sides)))


def drop_figures(version: Version) -> None:
    """Forget how good a version was, how near to a retrain, and its file's hash, by which a guess could be checked.

    What it cost stays, for plans are made from that, to one digit: the exact figures depend on every example.
    """
    version.sha256 = ""
    version.cost = {name: significant(float(value), 1) for name, value in version.cost.items()}
    tried = [{**found, "objection": ""} for found in (version.evaluation or {}).get("candidates", [])]
    version.metrics, version.certificate = {}, None
    version.evaluation = {"candidates": tried} if tried else None


def purged_versions(session: Session, part: Part) -> int:
    """How many versions had to go for the person; one that went for another person as well counts for both."""
    return session.scalar(select(func.count()).where(doomed(part), Version.state == VersionState.PURGED)) or 0


def kept_until(session: Session, part: Part) -> str | None:
    """The date when the last version that knew the person is purged, if any is kept."""
    last = session.scalar(select(func.max(Version.purge_at)).where(doomed(part), Version.state != VersionState.PURGED))
    return utc_text(last) if last else None


def fates(session: Session, part: Part) -> dict[str, Any]:
    """Which of the model's versions had to go for the person, and which stay and why."""
    found = session.scalars(select(Version).where(Version.model_id == part.model_id).order_by(Version.number)).all()
    gone = set(session.scalars(select(Version.number).where(doomed(part))))
    purged = [v.number for v in found if v.number in gone and v.state is VersionState.PURGED]
    reasons: dict[str, list[int]] = {}
    for version in found:
        if version.state is VersionState.PURGED:
            continue
        why = "made without this data"
        if version.number in gone:
            why = "knew this data, and is kept for a while, out of use"
        elif version.position < part.first:
            why = "made before this data came"
        reasons.setdefault(why, []).append(version.number)
    return {"purged": purged, "stay": [{"versions": numbers, "why": why} for why, numbers in reasons.items()]}
