"""Which versions are purged for a person, and which are kept and why."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.database import utc_text
from core.erasure.receipt_content import KeptVersions, VersionFates
from core.erasure.receipt_text import KeepReason
from core.ledger.queries import batched
from core.tables.erasures import Part
from core.tables.ledger import Example
from core.tables.versions import Version, VersionKind, VersionState
from core.versions.erased_examples import has_examples_at, may_depend_on, precedes_examples
from core.versions.queries import versions_of


def trained_positions(session: Session, part: Part, at: int) -> list[int]:
    """Positions of the person's examples that a version at a position was trained on."""
    found: list[int] = []
    for some in batched(part.positions):
        training = (Example.model_id == part.model_id, ~Example.holdout, Example.position <= at)
        found += session.scalars(select(Example.position).where(*training, Example.position.in_(some)))
    return found


def last_trained_on(session: Session, part: Part) -> Version | None:
    """The newest version that was trained on the person's data and still has its weights."""
    trained = has_examples_at(part, Version.position, Version.removals_position)
    known = select(Version).where(Version.model_id == part.model_id, trained, Version.state != VersionState.PURGED)
    return session.scalar(known.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def must_be_purged(part: Part) -> sa.ColumnElement[bool]:
    """Condition on versions to be purged: those trained on the person's data, and those adapted from them
    before forgetting was verified."""
    return sa.and_(Version.model_id == part.model_id, may_depend_on(part, Version))


def count_purged(session: Session, part: Part) -> int:
    """How many versions were purged for the person; one that was purged for several people counts for each."""
    return session.scalar(select(func.count()).where(must_be_purged(part), Version.state == VersionState.PURGED)) or 0


def last_purge_date(session: Session, part: Part) -> str | None:
    """The date when the last version trained on the person's data is purged, if any is kept."""
    last = session.scalar(
        select(func.max(Version.purge_at)).where(must_be_purged(part), Version.state != VersionState.PURGED)
    )
    return utc_text(last) if last else None


def find_fates(session: Session, part: Part) -> VersionFates:
    """Which of the model's versions were purged for the person, and which are kept and why."""
    found = versions_of(session, part.model_id)
    gone = set(session.scalars(select(Version.number).where(must_be_purged(part))))
    purged = [v.number for v in found if v.number in gone and v.state is VersionState.PURGED]
    reasons: dict[KeepReason, list[int]] = {}
    by_number = {version.number: version for version in found}
    for version in found:
        if version.state is VersionState.PURGED:
            continue
        if version.number in gone:
            why = KeepReason.KEPT
        elif precedes_examples(part, version.position):
            why = KeepReason.BEFORE
        else:
            why = KeepReason.DERIVED if derives_from(version, gone, by_number) else KeepReason.WITHOUT
        reasons.setdefault(why, []).append(version.number)
    return VersionFates(purged, [KeptVersions(numbers, why.value) for why, numbers in reasons.items()])


def derives_from(version: Version, gone: Collection[int], by_number: Mapping[int, Version]) -> bool:
    """Whether a network was adapted, in one or several steps, from a version trained on the person's data.

    The bytes of a version with a bound depend only on the retained examples and their ledger positions, whatever it was
    adapted from.
    """
    at: Version | None = version
    while at is not None and at.kind is VersionKind.ADAPTED:
        if at.certificate is not None and at.certificate.kind == "bound":
            return False
        if at.parent in gone:
            return True
        at = by_number.get(at.parent) if at.parent is not None else None
    return False
