"""The keys of the register, and their rotation.

To rotate the key, configure the new file as AMEND_SIGNING_KEY_FILE and the old one as AMEND_SIGNING_KEY_PREVIOUS_FILE,
and restart. The next leaf is then preceded by a leaf `key_rotated`, and the old key signs a head that includes it, so
that whoever trusts the old key can trust the new one.
"""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Unavailable
from core.register import signed_tree
from core.register.records import SYSTEM, PendingLeaf, new_record
from core.register.signing import LOST, Head, Signer, previous_signer_of
from core.tables.register import RecordKind, SigningKey


def find_key(session: Session, key_id: str) -> SigningKey | None:
    return session.get(SigningKey, key_id)


def earlier_keys(session: Session) -> Sequence[SigningKey]:
    return session.scalars(select(SigningKey).where(SigningKey.until.is_not(None)).order_by(SigningKey.until)).all()


def current_key(session: Session) -> SigningKey | None:
    """The key that signed the newest head; None if the register is empty."""
    return session.scalar(select(SigningKey).where(SigningKey.until.is_(None)))


def is_due(session: Session, signer: Signer) -> bool:
    """Whether the configured key differs from the one that signed the newest head."""
    key = current_key(session)
    return key is None or key.key_id != signer.key_id


def rotate(session: Session, signer: Signer, head: Head | None) -> Head | None:
    """Make the configured key the current one, in the locked register; returns its new head."""
    old = current_key(session)
    if old is None:
        add(session, signer.key_id, signer.public_pem)
        return head
    settings = session.info["settings"]
    previous = previous_signer_of(settings)
    lost = settings.signing_key_previous_file == LOST
    used_before = find_key(session, signer.key_id) is not None
    if used_before or not (lost or (previous is not None and previous.key_id == old.key_id)):
        raise Unavailable("signing_key_changed", describe_mismatch(signer.key_id, old.key_id, used_before))
    named = {"key_id": signer.key_id, "public_key": signer.public_pem, "replaces": old.key_id}
    made = new_record(session, RecordKind.KEY_ROTATED, SYSTEM, **named, lost=lost)
    first = head["size"] if head else 0
    rotated = signed_tree.append(session, [PendingLeaf(made)], first, previous or signer)
    replace(session, signer.key_id, signer.public_pem, first, rotated if previous else None)
    return rotated


def add(session: Session, key_id: str, public_pem: str) -> None:
    """Make a key the current one of a register that has none."""
    session.add(SigningKey(key_id=key_id, public_key=public_pem))
    session.flush()


def replace(session: Session, key_id: str, public_pem: str, leaf: int, head: Head | None) -> None:
    """Record that a leaf replaced the current key; `head` was signed by the old key and includes the leaf."""
    old = current_key(session)
    if old is not None:
        old.until, old.head = leaf, dict(head) if head else None
        session.flush()
    add(session, key_id, public_pem)


def describe_mismatch(configured: str, expected: str, used_before: bool) -> str:
    if used_before:
        return f"The signing key {configured} was replaced by the key {expected}. Configure that key, and restart."
    return (
        f"The signing key {configured} is not the one that signed the register, {expected}. Configure that key, or, to "
        "replace it, its file as AMEND_SIGNING_KEY_PREVIOUS_FILE."
    )
