"""People who sign in at an identity provider.

Each person is a key without a secret, so trails, the register and the audit log name people as they name keys.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from core.database import dialect_insert
from core.errors import Forbidden, Unauthorized
from core.keys import api_keys
from core.roles import Role
from core.tables.keys import Key, Scope

MAX_NAME = 200
SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.DATA_SCIENTIST: frozenset({Scope.READ, Scope.INGEST, Scope.ANALYSE, Scope.WEIGHTS}),
    Role.PRIVACY_OFFICER: frozenset({Scope.READ, Scope.ERASE}),
    Role.APPROVER: frozenset({Scope.READ, Scope.APPROVE}),
    Role.ADMIN: frozenset({Scope.ADMIN}),
}
"""A person with several roles has the scopes of all."""


@dataclass(frozen=True)
class Identity:
    """A person as the identity provider describes them."""

    issuer: str
    subject: str
    """The provider's permanent id of the person. Names and addresses change."""
    name: str
    scopes: frozenset[Scope]
    """None if no group of the person has a role."""

    @property
    def key_id(self) -> str:
        digest = hashlib.sha256(f"{self.issuer}\n{self.subject}".encode()).hexdigest()
        return f"p{digest[:19]}"


def require_role(identity: Identity) -> None:
    if not identity.scopes:
        message = "None of your groups has a role in Amend. Ask an administrator to add you to one that has."
        raise Forbidden("role_missing", message)


def find(session: Session, identity: Identity) -> Key | None:
    """The person's key; None if they are new. Raises Unauthorized if it was revoked."""
    key = session.get(Key, identity.key_id)
    if key is not None and key.revoked_at is not None:
        raise Unauthorized("key_unknown", "An administrator has revoked your access.")
    return key


def is_current(key: Key, identity: Identity) -> bool:
    """Whether the stored name and scopes are those of the identity."""
    return key.name == identity.name and key.scopes == names_of(identity.scopes)


def save(session: Session, identity: Identity) -> Key:
    """Store a person, or their new name and scopes. Raises Unauthorized if their access was revoked."""
    new = {
        "id": identity.key_id,
        "name": identity.name,
        "scopes": names_of(identity.scopes),
        "person": True,
        "digest": api_keys.digest(secrets.token_urlsafe(32)),
    }
    # several first requests of a person may arrive at once
    session.execute(dialect_insert(session, Key).values(new).on_conflict_do_nothing(index_elements=["id"]))
    key = find(session, identity)
    assert key is not None
    key.name, key.scopes = identity.name, names_of(identity.scopes)
    session.flush()
    return key


def names_of(scopes: Collection[Scope]) -> list[str]:
    return sorted(scope.value for scope in scopes)


def readable_name(name: str | None, address: str | None, subject: str) -> str:
    """The name that pages and the register show.

    >>> readable_name("Ada Lovelace", "ada@example.org", "7")
    'Ada Lovelace (ada@example.org)'
    """
    text = f"{name} ({address})" if name and address and name != address else name or address or subject
    return "".join(c for c in text if c.isprintable())[:MAX_NAME]


def scopes_of(groups: Collection[str], roles: Mapping[str, Role]) -> frozenset[Scope]:
    """The scopes of a person in these groups; none if no group has a role."""
    return frozenset().union(*(SCOPES[roles[group]] for group in groups if group in roles))
