"""The table of models. A row contains the head of the model's ledger; positions are assigned under the row's lock."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NewType

from sqlalchemy import CheckConstraint, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json

if TYPE_CHECKING:
    from core.kprior.model.spec import Spec
else:
    Spec = dict  # the engine imports torch, which processes that only migrate do not need

PolicyDocument = NewType("PolicyDocument", dict[str, object])
"""The JSON of a policy, which `core.models.policy` reads and writes."""
TrainingDocument = NewType("TrainingDocument", dict[str, object])
"""The JSON of training options, which `core.models.training_options` reads and writes."""


class Model(Base):
    """A named predictor."""

    __tablename__ = "models"
    # ids are never reused: files and examples of a deleted model could be taken for those of a new one
    __table_args__ = (CheckConstraint("head >= 0", name="head"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    spec: Mapped[Spec] = mapped_column(Json)
    """The spec at creation. Later changes are in the ledger."""
    training: Mapped[TrainingDocument] = mapped_column(Json)
    policy: Mapped[PolicyDocument] = mapped_column(Json)
    created_by: Mapped[str | None] = mapped_column(String(20))
    """Id of the key that created the model; its quota counts it."""
    head: Mapped[int] = mapped_column(BigInteger, default=0)
    """The last position of the ledger."""
    layout_position: Mapped[int] = mapped_column(BigInteger, default=0)
    """Position of the last change of the input or the target. New examples are stored in the layout since then."""
    train_count: Mapped[int] = mapped_column(BigInteger, default=0)
    holdout_count: Mapped[int] = mapped_column(BigInteger, default=0)
    removed_count: Mapped[int] = mapped_column(BigInteger, default=0)
    expired_position: Mapped[int] = mapped_column(BigInteger, default=0)
    """Position up to which all examples have expired and were removed (`core/lifecycle/example_retention.py`)."""
    pruned_version: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of the newest version when old versions were last purged (`core/lifecycle/version_retention.py`)."""
    champion: Mapped[int | None]
    """Number of the version that serves predictions."""
    tip: Mapped[int | None]
    """Number of the version that the next adaptation starts from: the champion, unless promotion is manual."""
    confirmed: Mapped[int | None]
    """Number of the last version that a person accepted or a retrain confirmed: the gate compares with it as well."""
    scored_position: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The position up to which examples were scored before the model learnt them."""
    covered_position: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The position up to which the tip needs no adaptation, although it is older: all later changes cancel out."""
    accepted_position: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """The head when a person last accepted a batch: the version that covers it becomes `confirmed`."""
    accepted_by: Mapped[str | None] = mapped_column(String(20))
    """Id of the key that accepted it: the version that covers it is promoted in this person's name."""
    quarantined_count: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    pending_count: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Number of examples without a label, except those that an erasure request restricts."""
    held_at: Mapped[datetime | None]
    """Since when automatic adaptations, retrains and promotions are on hold (`core/models/holds.py`)."""
    held_reason: Mapped[str | None] = mapped_column(String(200))
    held_by: Mapped[str | None] = mapped_column(String(20))
    """Id of the key that put the model on hold."""
    created_at: Mapped[datetime] = mapped_column(default=now)
