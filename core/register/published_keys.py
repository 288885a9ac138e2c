"""The public keys of the register, as others need them to follow a rotation."""

from typing import cast

from sqlalchemy.orm import Session
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from core.register import log
from core.register.records import Entry
from core.register.signing import Head, signer_of
from core.register.signing_keys import current_key, earlier_keys
from core.tables.register import Leaf


class EarlierKey(TypedDict):
    """A key that was replaced."""

    key_id: str
    public_key: str
    until: int
    """Index of the leaf that replaced it."""
    head: Head | None
    """Head signed by this key that includes that leaf; null if the key was lost."""
    rotation: Entry
    """That leaf, with its inclusion proof for this head."""


class PublicKeys(TypedDict):
    """The public key of the register, and earlier ones."""

    key_id: str
    algorithm: str
    public_key: str
    """PEM (SubjectPublicKeyInfo)."""
    earlier: list[EarlierKey]


def public_keys(session: Session) -> PublicKeys:
    """The public keys of the register."""
    key, signer = current_key(session), signer_of(session.info["settings"])
    earlier: list[EarlierKey] = []
    for old in earlier_keys(session):
        assert old.until is not None
        rotation = log.entry(session, session.get_one(Leaf, old.until), old.until + 1)
        head = cast(Head | None, old.head)
        earlier.append(
            EarlierKey(key_id=old.key_id, public_key=old.public_key, until=old.until, head=head, rotation=rotation)
        )
    return PublicKeys(
        key_id=key.key_id if key else signer.key_id,
        algorithm="ed25519",
        public_key=key.public_key if key else signer.public_pem,
        earlier=earlier,
    )
