"""The table of models. Its rows carry the head of each ledger, and the lock under which positions are handed out."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NewType

from sqlalchemy import CheckConstraint, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, Json, now

if TYPE_CHECKING:
    from core.kprior.model.spec import Spec
else:
    Spec = dict  # the engine would bring torch to processes that only migrate

PolicyDocument = NewType("PolicyDocument", dict[str, object])
"""What `core.models.policy` reads and writes."""
TrainingDocument = NewType("TrainingDocument", dict[str, object])
"""What `core.models.spec` reads and writes."""


class Model(Base):
    """A named predictor."""

    __tablename__ = "models"
    # a number is never used again: files and examples of a deleted model could be taken for the new one's
    __table_args__ = (CheckConstraint("head >= 0", name="head"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    spec: Mapped[Spec] = mapped_column(Json)
    """As created. Changes are in the ledger."""
    training: Mapped[TrainingDocument] = mapped_column(Json)
    policy: Mapped[PolicyDocument] = mapped_column(Json)
    head: Mapped[int] = mapped_column(BigInteger, default=0)
    """The last position of the ledger."""
    layout: Mapped[int] = mapped_column(BigInteger, default=0)
    """Where the input or the target changed last: new examples are stored as it is since then."""
    train_count: Mapped[int] = mapped_column(BigInteger, default=0)
    holdout_count: Mapped[int] = mapped_column(BigInteger, default=0)
    removed_count: Mapped[int] = mapped_column(BigInteger, default=0)
    expired: Mapped[int] = mapped_column(BigInteger, default=0)
    """The position up to which all examples were removed for their age (`core/erasure/retention.py`)."""
    champion: Mapped[int | None]
    """The number of the version that answers predictions."""
    tip: Mapped[int | None]
    """The number of the version that the next adaptation starts from: the champion, unless promotion is manual."""
    held_at: Mapped[datetime | None]
    """Since when nothing is adapted, retrained or promoted by itself (`core/jobs/holds.py`)."""
    held_why: Mapped[str | None] = mapped_column(String(200))
    held_by: Mapped[str | None] = mapped_column(String(20))
    """The id of the key that asked for it."""
    created_at: Mapped[datetime] = mapped_column(default=now)
