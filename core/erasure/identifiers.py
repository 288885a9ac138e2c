"""The identifiers of the people whose erasure is requested, as keyed hashes: one person may be known by several.

The hash by which examples are found is deleted when the request ends. The token stays: it is on receipts and in the
register, and only the holder of the secret can match it with an identifier.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.database import dialect_insert
from core.ledger.queries import batched
from core.tables.erasures import Erasure, Identifier


def token_of(subject: bytes, secret: bytes) -> str:
    """The token that identifies the person on receipts."""
    return hmac.digest(secret, b"receipt:" + subject, "sha256").hex()


def owners_of(session: Session, subjects: Iterable[bytes], restriction: bool = False) -> dict[bytes, str]:
    """Ids of the open erasures, or restrictions, for some identifiers, by the hash of the identifier."""
    found: dict[bytes, str] = {}
    for some in batched(list(subjects)):
        rows = select(Identifier.subject, Identifier.erasure_id).where(Identifier.subject.in_(some))
        rows = rows.where(Identifier.restriction.is_(restriction))
        found.update((subject, id) for subject, id in session.execute(rows) if subject is not None)
    return found


def others_of(session: Session, subjects: Iterable[bytes]) -> dict[Erasure, list[bytes]]:
    """The open requests, erasures first, that have some of these identifiers, locked, each with those identifiers."""
    given, found = list(subjects), dict[Erasure, list[bytes]]()
    for restriction in (False, True):
        for subject, id in sorted(owners_of(session, given, restriction).items()):
            found.setdefault(session.get_one(Erasure, id, with_for_update=True), []).append(subject)
    return found


def claim(session: Session, owners: Mapping[bytes, str], secret: bytes, restriction: bool = False) -> None:
    """Add identifiers to requests, by the hash of the identifier; those of another open request stay as they are.

    In one order for all callers: a transaction waits here for others that claim the same identifiers.
    """
    for subject, id in sorted(owners.items()):
        row = {"erasure_id": id, "token": token_of(subject, secret), "subject": subject, "restriction": restriction}
        # an error would put the hash into PostgreSQL's log
        session.execute(dialect_insert(session, Identifier).values(row).on_conflict_do_nothing())


def subjects_of(session: Session, erasure: Erasure) -> list[bytes]:
    """The hashes by which the person's examples are found; none once the request has ended."""
    return subjects_by_erasure(session, [erasure.id])[erasure.id]


def subjects_by_erasure(session: Session, ids: Sequence[str]) -> dict[str, list[bytes]]:
    """The same for several requests, by their ids."""
    found: dict[str, list[bytes]] = {id: [] for id in ids}
    for some in batched(list(found)):
        rows = select(Identifier.erasure_id, Identifier.subject).where(Identifier.erasure_id.in_(some))
        for id, subject in session.execute(rows.order_by(Identifier.token)):
            if subject is not None:
                found[id].append(subject)
    return found


def tokens_by_erasure(session: Session, erasures: Sequence[Erasure]) -> dict[str, list[str]]:
    """The tokens of the identifiers of some requests, by the id of the request; the first identifier first."""
    found = {erasure.id: [erasure.token] for erasure in erasures}
    for some in batched(list(found)):
        rows = select(Identifier.erasure_id, Identifier.token).where(Identifier.erasure_id.in_(some))
        for id, token in session.execute(rows.order_by(Identifier.token)):
            if token not in found[id]:
                found[id].append(token)
    return found


def alias_tokens_of(session: Session, erasure: Erasure) -> list[str]:
    """The tokens of all identifiers but the first."""
    return tokens_by_erasure(session, [erasure])[erasure.id][1:]


def forget_subjects(session: Session, erasure: Erasure) -> None:
    """Delete the hashes of a request that ends. Its tokens stay."""
    session.execute(update(Identifier).where(Identifier.erasure_id == erasure.id).values(subject=None))
