"""The tables of API keys and of browsers that are signed in with them."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json


class Scope(StrEnum):
    """Permissions of a key."""

    READ = "read"
    """Read models, examples, jobs and versions, but not their weights; request predictions."""
    INGEST = "ingest"
    """Add and remove examples."""
    ERASE = "erase"
    """Remove examples; handle erasure requests."""
    APPROVE = "approve"
    """Read erasure requests; approve, hold or refuse those that others have filed."""
    ANALYSE = "analyse"
    """Run analyses and read their results, which name examples."""
    WEIGHTS = "weights"
    """Download the weights of versions."""
    ADMIN = "admin"
    """Everything."""


class Key(Base):
    """An API key, of which only a hash of the secret is stored. Revoked keys stay in the table."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    person: Mapped[bool] = mapped_column(default=False)
    """Whether this is a person who signs in at the identity provider. Nobody knows the secret of such a key."""
    scopes: Mapped[list[str]]
    models: Mapped[list[str] | None]
    """The models that the key can see; None: all."""
    quota: Mapped[dict[str, object] | None] = mapped_column(Json)
    """What the key may use, as `core.keys.quotas` reads it; None: no limits of its own."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    """When the key expires; None: never."""
    revoked_at: Mapped[datetime | None]


class KeyUsage(Base):
    """What a key with a quota has added today."""

    __tablename__ = "key_usage"

    key_id: Mapped[str] = mapped_column(ForeignKey(Key.id, ondelete="CASCADE"), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    """The date in UTC."""
    rows: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)


class SignIn(Base):
    """A browser that is signed in to the web pages with a key, identified by the hash of its cookie."""

    __tablename__ = "sign_ins"

    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey(Key.id, ondelete="CASCADE"), index=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)
