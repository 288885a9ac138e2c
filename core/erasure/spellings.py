"""Similar spellings of an identifier. Only hashes of subjects are stored, so variants of the given spelling are hashed
and looked up: this finds other cases, Unicode forms and spaces, but no typing errors."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.ledger.queries import batched
from core.ledger.subject_hashes import subject_hash
from core.settings import Settings
from core.tables.ledger import HAS_CONTENT, Example, PendingExample


@dataclass(frozen=True)
class Spelling:
    """A spelling of an identifier, and the number of examples stored under it."""

    subject: str
    examples: int


def vary(subject: str) -> list[str]:
    """The given spelling and similar ones.

    >>> vary("Ann  Lee")[:4]
    ['Ann  Lee', 'ann  lee', 'ANN  LEE', 'Ann  lee']
    >>> {"annlee", "Ann Lee"} <= set(vary("Ann  Lee"))
    True
    >>> "Ann@example.com" in vary("ANN@Example.com")
    True
    """
    found: dict[str, None] = {}
    for form in (subject, unicodedata.normalize("NFKC", subject)):
        words = form.split()
        for spaced in (form, " ".join(words), "".join(words)):
            cases = (spaced, spaced.lower(), spaced.upper(), spaced.capitalize(), spaced.title(), spaced.casefold())
            name, at, domain = spaced.rpartition("@")
            mail = (f"{name}@{domain.lower()}", f"{name.lower()}@{domain}", f"{name.title()}@{domain.lower()}")
            found |= dict.fromkeys((*cases, *(mail if at else ())))
    return [spelling for spelling in found if spelling.strip()]


def find_similar(
    session: Session, subjects: Sequence[str], settings: Settings
) -> tuple[list[Spelling], list[Spelling]]:
    """The given identifiers of a person, and the similar spellings under which there are examples."""
    spellings = list(dict.fromkeys((*subjects, *(text for given in subjects for text in vary(given)))))
    hashes = {text: subject_hash(text, settings.secret, settings.caseless_subjects) for text in spellings}
    counts = count_by_subject(session, list(set(hashes.values())))
    given = [Spelling(subject, counts.get(hashes[subject], 0)) for subject in subjects]
    seen, similar = {hashes[subject] for subject in subjects}, []
    for text in spellings:
        if hashes[text] not in seen and hashes[text] in counts:
            seen.add(hashes[text])
            similar.append(Spelling(text, counts[hashes[text]]))
    return given, similar


def count_by_subject(session: Session, hashes: Sequence[bytes]) -> dict[bytes, int]:
    """The number of examples of some people, with and without labels, by the hash of the subject."""
    found: dict[bytes, int] = {}
    for some in batched(hashes):
        stored = select(Example.subject, func.count()).where(Example.subject.in_(some), HAS_CONTENT)
        waiting = select(PendingExample.subject, func.count()).where(PendingExample.subject.in_(some))
        for query in (stored.group_by(Example.subject), waiting.group_by(PendingExample.subject)):
            for subject, count in session.execute(query):
                if subject is not None:
                    found[subject] = found.get(subject, 0) + count
    return found
