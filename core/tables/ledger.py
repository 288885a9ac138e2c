"""The tables of the ledger.

`changes` records the changes of a model: one row per range of positions of the same kind and request.
`examples` contains the data: an example is in force from its position until the position of its removal.
`holdout_samples` contains the positions of the rows that versions are evaluated on.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import Boolean, ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, ByteOrder, Json, enum_column
from core.tables.jobs import Job
from core.tables.models import Model

if TYPE_CHECKING:
    from core.kprior.model.spec import SpecPart
else:
    SpecPart = dict  # as in `core.tables.models`


class ChangeKind(StrEnum):
    """Kinds of changes of a model."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"
    """An example was removed and another one with the same id added at the same position."""
    REGULARIZER = "regularizer"
    ARCHITECTURE = "architecture"
    INPUT = "input"
    TARGET = "target"
    LOSS = "loss"
    RESTORED = "restored"
    """Put back into force, with the content that it had before."""
    LABELLED = "labelled"
    """The labels of examples arrived that had been stored without one."""
    QUARANTINED = "quarantined"
    """Taken out of force because the version that learnt them was rejected, or never in force because they are about
    people whose data was erased."""


class Change(Base):
    """Changes of one kind at consecutive positions, from `first` to `last`. There are no gaps between rows."""

    __tablename__ = "changes"
    __table_args__ = (
        # the few changes of the spec among all batches: every job and every request for a model reads them
        Index(
            "ix_changes_spec",
            "model_id",
            "last",
            sqlite_where=text("value IS NOT NULL"),
            postgresql_where=text("value IS NOT NULL"),
        ),
        # the few corrections among all batches: they are listed with the changes of the spec
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
    """The new regularizer, architecture, loss, input or target; the last two with the conversion of older rows."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class Example(Base):
    """A labelled record. Its position is also its key in the engine."""

    __tablename__ = "examples"
    __table_args__ = (
        # an id may be used again for another example after its removal, but not while it is in quarantine
        Index(
            "uq_examples_id_in_force",
            "model_id",
            "id",
            unique=True,
            sqlite_where=text("removed IS NULL OR quarantine IS NOT NULL"),
            postgresql_where=text("removed IS NULL OR quarantine IS NOT NULL"),
        ),
        Index(
            "ix_examples_source",
            "model_id",
            "source",
            sqlite_where=text("source IS NOT NULL"),
            postgresql_where=text("source IS NOT NULL"),
        ),
        Index(
            "ix_examples_quarantine",
            "model_id",
            "quarantine",
            sqlite_where=text("quarantine IS NOT NULL"),
            postgresql_where=text("quarantine IS NOT NULL"),
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
        Index(
            "ix_examples_unseen",
            "model_id",
            "position",
            sqlite_where=text("unseen IS NOT NULL"),
            postgresql_where=text("unseen IS NOT NULL"),
        ),
        # rows are stored in the order of their positions, without a second copy of the key
        {"sqlite_with_rowid": False},
    )

    # no foreign key: its check would cost more than storing the row
    model_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    removed: Mapped[int | None] = mapped_column(BigInteger)
    """Position of the removal."""
    y: Mapped[float]
    """The target as a number: 0 or 1, the index of the class, the number, or the count."""
    holdout: Mapped[bool] = mapped_column(Boolean(create_constraint=False))
    id: Mapped[str] = mapped_column(ByteOrder)
    """The id that the caller chose."""
    subject: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Keyed hash of the person that the example is about."""
    weight: Mapped[float | None]
    """Weight of the example; null: 1."""
    time: Mapped[datetime | None]
    """When the event happened that it describes; null: when it arrived."""
    source: Mapped[str | None] = mapped_column(String(200))
    """The load, file or system that it came from, as the caller names it."""
    quarantine: Mapped[int | None]
    """Number of the rejected version that learnt it, or `RETURNED`; it is out of force until a person decides."""
    x: Mapped[bytes] = mapped_column(LargeBinary)
    """The input: float32, or uint8 for images of bytes, little-endian; texts in UTF-8, followed by a zero byte."""
    unseen: Mapped[str | None] = mapped_column(Text)
    """Texts of unseen category values (`core/ledger/unseen_categories.py`)."""


RETURNED = 0
"""Quarantine of examples about people whose data was erased. No version has this number."""
HAS_CONTENT = text("length(examples.x) > 0")
"""Of some removed examples, only the position is left. SQL that is written as text uses `.text`: to format the clause
would compile it."""


class Encoding(Base):
    """The features that the frozen encoder of a model computes for an example (`core/ledger/encodings.py`).

    It is deleted with the content of its example.
    """

    __tablename__ = "encodings"
    __table_args__ = (
        Index(
            "ix_encodings_failed",
            "model_id",
            "position",
            sqlite_where=text("length(data) = 0"),
            postgresql_where=text("length(data) = 0"),
        ),
        {"sqlite_with_rowid": False},
    )

    # no foreign key, as for examples
    model_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    encoder: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Identifies the encoder: a model may have had several."""
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """The features; empty if the encoder failed for this example."""


class HoldoutSample(Base):
    """The holdout rows that a model's versions are evaluated on (`core/ledger/holdout_sample.py`)."""

    __tablename__ = "holdout_samples"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
    """Position up to which additions and removals are reflected."""
    size: Mapped[int]
    """Maximum number of rows."""
    threshold: Mapped[float]
    """The sample consists of all rows in force whose hash is at most this."""
    positions: Mapped[bytes] = mapped_column(LargeBinary)
    """Positions of the rows, ascending: int64, little-endian."""


class Removal(Base):
    """A request to remove examples."""

    __tablename__ = "removals"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    removed: Mapped[int]
    unknown: Mapped[int]
    """Number of unknown ids or subjects; the names are not stored, because they may be personal."""
    position: Mapped[int] = mapped_column(BigInteger)
    job_id: Mapped[str | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class PendingExample(Base):
    """An example without a label. It is not in the ledger; its label adds it there as an ordinary example."""

    __tablename__ = "pending_examples"
    __table_args__ = (
        Index(
            "ix_pending_examples_subject",
            "subject",
            "model_id",
            sqlite_where=text("subject IS NOT NULL"),
            postgresql_where=text("subject IS NOT NULL"),
        ),
        Index("ix_pending_examples_created_at", "model_id", "created_at"),
        Index(
            "ix_pending_examples_source",
            "model_id",
            "source",
            sqlite_where=text("source IS NOT NULL"),
            postgresql_where=text("source IS NOT NULL"),
        ),
    )

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(ByteOrder, primary_key=True)
    subject: Mapped[bytes | None] = mapped_column(LargeBinary)
    holdout: Mapped[bool] = mapped_column(Boolean(create_constraint=False))
    weight: Mapped[float | None]
    time: Mapped[datetime | None]
    source: Mapped[str | None] = mapped_column(String(200))
    layout_position: Mapped[int] = mapped_column(BigInteger)
    """Where the input or the target had changed last when it was stored."""
    x: Mapped[bytes] = mapped_column(LargeBinary)
    unseen: Mapped[str | None] = mapped_column(Text)
    version: Mapped[int | None]
    """Number of the champion that predicted it when it arrived."""
    mean: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The champion's prediction: float64, as many as the model has outputs."""
    challenger: Mapped[int | None]
    """Number of the policy's challenger, if it predicted the example as well."""
    challenger_mean: Mapped[bytes | None] = mapped_column(LargeBinary)
    restricted: Mapped[bool] = mapped_column(Boolean(create_constraint=False), default=False)
    """Whether an open erasure request covers it: nobody may read or label it."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class RecordedPrediction(Base):
    """What was predicted for an example before its label arrived. Deleted once it is scored, or with the example."""

    __tablename__ = "recorded_predictions"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """Position of the example, that is, of its label."""
    version: Mapped[int | None]
    """Number of the version that predicted it; null if only the challenger's prediction is left."""
    mean: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Its prediction: float64, as many as the model has outputs."""
    challenger: Mapped[int | None]
    challenger_mean: Mapped[bytes | None] = mapped_column(LargeBinary)
