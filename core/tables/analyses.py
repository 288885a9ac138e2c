"""The table of analyses: questions about a model that change nothing, and their results."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json
from core.tables.models import Model


class AnalysisKind(StrEnum):
    """Kinds of analyses."""

    PREVIEW = "preview"
    LEAVE_ONE_OUT = "leave_one_out"
    CROSS_VALIDATION = "cross_validation"
    TUNING = "tuning"
    INFLUENCE = "influence"
    LABELLING = "labelling"


class Analysis(Base):
    """An analysis at one position of the ledger. Its result is personal data: every erasure of the model deletes it."""

    __tablename__ = "analyses"
    __table_args__ = (
        Index("ix_analyses_model", "model_id", "created_at", "id"),
        Index("ix_analyses_job_id", "job_id"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(String(36))
    """Null if the request itself computed the result."""
    kind: Mapped[str] = mapped_column(String(20))
    request: Mapped[dict[str, Any]] = mapped_column(Json)
    """The parameters. Data that the caller sent are deleted when the analysis ends."""
    position: Mapped[int | None] = mapped_column(BigInteger)
    """The ledger position that was analysed; null until the analysis ends."""
    version: Mapped[int | None]
    """The version that was analysed; the tip at that position."""
    result: Mapped[dict[str, Any] | None] = mapped_column(Json)
    cost: Mapped[dict[str, Any] | None] = mapped_column(Json)
    requested_by: Mapped[str | None] = mapped_column(String(20))
    """Id of the key that requested it."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    finished_at: Mapped[datetime | None]
