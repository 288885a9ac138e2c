"""The tables of the ledger.

`changes` says what happened at which positions: one row for a run of positions of the same kind and request.
`examples` holds the data: an example is in force from its position until the position of its removal.
`holdout_samples` names the rows that versions are measured on.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import Boolean, ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, ByteOrder, Json, enum_column, now
from core.tables.jobs import Job
from core.tables.models import Model

if TYPE_CHECKING:
    from core.kprior.model.spec import SpecPart
else:
    SpecPart = dict  # as in `core.tables.models`


class ChangeKind(StrEnum):
    """What can happen to a model."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"
    """Removed, and another with its id added at the same position."""
    REGULARIZER = "regularizer"
    ARCHITECTURE = "architecture"
    INPUT = "input"
    TARGET = "target"
    LOSS = "loss"


class Change(Base):
    """A run of changes, `first` to `last`, without gaps before or after it."""

    __tablename__ = "changes"
    __table_args__ = (
        # the few among all batches that changed the spec, which every job and every look at a model asks for
        Index(
            "ix_changes_spec",
            "model_id",
            "last",
            sqlite_where=text("value IS NOT NULL"),
            postgresql_where=text("value IS NOT NULL"),
        ),
        # the few corrections among them, which are listed with those
        Index(
            "ix_changes_replaced",
            "model_id",
            "last",
            sqlite_where=text("kind = 'replaced'"),
            postgresql_where=text("kind = 'replaced'"),
        ),
    )

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    first: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[ChangeKind] = mapped_column(enum_column(ChangeKind))
    value: Mapped[SpecPart | None] = mapped_column(Json)
    """The new regularizer, architecture, loss, input or target; of the last two with what it says of rows from before.
    """
    created_at: Mapped[datetime] = mapped_column(default=now)


class Example(Base):
    """One labelled record. Its position is also the key under which the engine knows it."""

    __tablename__ = "examples"
    __table_args__ = (
        # an id may come back after its removal, as another example
        Index(
            "uq_examples_id_in_force",
            "model_id",
            "id",
            unique=True,
            sqlite_where=text("removed IS NULL"),
            postgresql_where=text("removed IS NULL"),
        ),
        Index(
            "ix_examples_subject",
            "subject",
            "model_id",
            sqlite_where=text("subject IS NOT NULL"),
            postgresql_where=text("subject IS NOT NULL"),
        ),
        Index(
            "ix_examples_removed",
            "model_id",
            "removed",
            sqlite_where=text("removed IS NOT NULL"),
            postgresql_where=text("removed IS NOT NULL"),
        ),
        # rows lie in the order of their positions, with no second copy of the key
        {"sqlite_with_rowid": False},
    )

    # no foreign key: its check would cost more than storing the row
    model_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    removed: Mapped[int | None] = mapped_column(BigInteger)
    """The position of its removal."""
    y: Mapped[float]
    """The target as a number: 0 or 1, the index of the class, the number, the count."""
    holdout: Mapped[bool] = mapped_column(Boolean(create_constraint=False))
    id: Mapped[str] = mapped_column(ByteOrder)
    """The caller's."""
    subject: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Keyed hash of the person it is about."""
    weight: Mapped[float | None]
    """How many times it counts; null: once."""
    x: Mapped[bytes] = mapped_column(LargeBinary)
    """The input's numbers: float32, or uint8 for images of bytes, in the machine's (little-endian) order."""


HAS_CONTENT = text("length(examples.x) > 0")
"""Of some removed examples nothing is left but their position."""


class HoldoutSample(Base):
    """The holdout rows that a model's versions are measured on (`core/ledger/holdout.py`)."""

    __tablename__ = "holdout_samples"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
    """What came and went until there is taken into account."""
    size: Mapped[int]
    """How many rows there may be."""
    threshold: Mapped[float]
    """The sample is all rows in force whose hash is at most this."""
    positions: Mapped[bytes] = mapped_column(LargeBinary)
    """Of the rows, ascending: int64, in the machine's (little-endian) order."""


class Removal(Base):
    """A request to remove examples, and the positions it took."""

    __tablename__ = "removals"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    removed: Mapped[int]
    unknown: Mapped[int]
    """How many; which is the caller's knowledge, and may be personal."""
    position: Mapped[int] = mapped_column(BigInteger)
    job_id: Mapped[str | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
