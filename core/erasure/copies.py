"""Copies of a person's data, and of versions trained on it, that left Amend before the erasure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.audit.queries import Copies, copies_of
from core.database import utc_text
from core.erasure.receipt_content import Copy, ModelReport
from core.erasure.version_fates import must_be_purged
from core.tables.audit import Action
from core.tables.erasures import Part
from core.tables.keys import Key
from core.tables.models import Model
from core.tables.versions import Version

WORDS = {
    Action.WEIGHTS_DOWNLOADED: "the weights of version {version}",
    Action.ONNX_DOWNLOADED: "version {version} as an ONNX file",
    Action.COEFFICIENTS_READ: "the coefficients of version {version}",
    Action.BUNDLE_DOWNLOADED: "a bundle of evidence with version {version}",
    Action.EXAMPLES_EXPORTED: "an export of the examples",
}
"""What somebody has after each action."""


@dataclass(frozen=True)
class Notice:
    """A draft of the notice to one recipient of copies (GDPR Art. 19)."""

    recipient: str
    """Id of the API key."""
    name: str | None
    """Name of the API key."""
    copies: list[tuple[str, Copy]]
    """The copies, each with the name of its model."""
    text: str


def find_copies(session: Session, model: Model, part: Part) -> list[Copy]:
    """The copies that the audit log knows of, oldest first."""
    versions = session.scalars(select(Version.number).where(must_be_purged(part))).all()
    return to_copies(session, copies_of(session, model, versions, part.first_position, part.removal_position - 1))


def to_copies(session: Session, found: Sequence[Copies]) -> list[Copy]:
    """Copies from the audit log, with the names of the keys."""
    actors = {copies.actor for copies in found}
    names = {key.id: key.name for key in session.scalars(select(Key).where(Key.id.in_(actors)))} if actors else {}
    return [
        Copy(
            what=copies.action,
            at=utc_text(copies.first),
            by=copies.actor,
            name=names.get(copies.actor),
            version=copies.version,
            count=copies.count,
            last_at=utc_text(copies.last) if copies.count > 1 else None,
        )
        for copies in found
    ]


def describe_copy(copy: Copy) -> str:
    """What a copy consists of.

    >>> describe_copy(Copy("weights_downloaded", "2026-03-01T09:00:00Z", "k1", version=3))
    'the weights of version 3'
    """
    return WORDS[Action(copy.what)].format(version=copy.version)


def describe_dates(copy: Copy) -> str:
    """When copies were made.

    >>> describe_dates(Copy("weights_downloaded", "2026-03-01T09:00:00Z", "k1"))
    'on 2026-03-01'
    >>> describe_dates(Copy("weights_downloaded", "2026-03-01T09:00:00Z", "k1", count=3, last_at="2026-04-02"))
    '3 times from 2026-03-01 to 2026-04-02'
    """
    first, last = copy.at[:10], (copy.last_at or copy.at)[:10]
    times = "" if copy.count == 1 else f"{copy.count} times "
    return f"{times}on {first}" if first == last else f"{times}from {first} to {last}"


def list_copies(models: Iterable[ModelReport]) -> list[tuple[str, Copy]]:
    """All copies on a receipt, each with the name of its model."""
    return [(model.model, copy) for model in models for copy in model.copies or ()]


def write_notices(erasure: str, completed_at: str, models: Sequence[ModelReport]) -> list[Notice]:
    """One notice for each recipient, in the order of their first copies."""
    by_recipient: dict[str, list[tuple[str, Copy]]] = {}
    for model, copy in sorted(list_copies(models), key=lambda entry: entry[1].at):
        by_recipient.setdefault(copy.by, []).append((model, copy))
    return [
        Notice(by, copies[-1][1].name, copies, write_notice(erasure, completed_at, copies))
        for by, copies in by_recipient.items()
    ]


def write_notice(erasure: str, completed_at: str, copies: Sequence[tuple[str, Copy]]) -> str:
    """The text of a notice."""
    last = copies[-1][1]
    key = f"the API key “{last.name}” ({last.by})" if last.name else f"the API key {last.by}"
    lines = [
        "Notice of erasure (GDPR Art. 19)",
        "",
        f"On {completed_at[:10]} we erased personal data at the request of the person concerned. "
        f"With {key}, you had received copies that contain this data, or models that were trained on it:",
        "",
        *(f"- {describe_copy(copy)}, model {model}, {describe_dates(copy)}" for model, copy in copies),
        "",
        "Please delete these copies and everything that you derived from them, and tell us when this is done. If you "
        "passed copies on, please inform those who received them.",
        "",
        f"Our number for the request: {erasure}",
    ]
    return "\n".join(lines) + "\n"
