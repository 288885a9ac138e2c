"""The tables of model quality: how versions did on examples before they learnt them, and drift of the inputs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Boolean, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json
from core.tables.documents import DriftDocument, DriftedNames
from core.tables.models import Model


class QualityWindow(Base):
    """Predictions of the champion and of the frozen first version for the examples of one hour and one job.

    Windows of days and weeks are merged from these. If a job brings examples of many hours, its windows are days or
    weeks.
    """

    __tablename__ = "quality_windows"
    __table_args__ = (
        Index("ix_quality_windows_start", "model_id", "start"),
        Index("ix_quality_windows_position", "model_id", "first_position"),
    )

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(String(36))
    start: Mapped[datetime]
    """The beginning of the window, by event time where the examples have one."""
    first_position: Mapped[int] = mapped_column(BigInteger)
    last_position: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int]
    weight: Mapped[float]
    """Sum of the rows' weights."""
    heaviest: Mapped[float]
    """The largest share of one subject in this sum: rounded metrics must hide a person with all of their rows."""
    champion: Mapped[int]
    """Number of the version that scored."""
    frozen: Mapped[int | None]
    """Number of the version that stands for doing nothing; null if it cannot predict these examples."""
    challenger: Mapped[int | None]
    metrics: Mapped[dict[str, dict[str, float]]] = mapped_column(Json)
    """By contestant (champion, frozen, baseline, challenger): metrics and their standard errors."""
    scores: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The predictions row by row; deleted with the version that made them."""
    alarm: Mapped[bool] = mapped_column(Boolean(create_constraint=False))
    rounded: Mapped[bool] = mapped_column(Boolean(create_constraint=False), default=False)
    """Whether only rounded metrics are left, because a version that scored was trained on an erased person's data."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class DriftReport(Base):
    """The last comparison of recent examples with the last full training. An erasure deletes it."""

    __tablename__ = "drift_reports"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
    """The last position that it covers."""
    report: Mapped[DriftDocument | None] = mapped_column(Json)
    """Null after an erasure, until drift is measured again without the person's examples."""
    drifted: Mapped[DriftedNames] = mapped_column(Json)
    """What the event `drift.detected` was sent for and has not recovered since."""
    detected_at: Mapped[datetime | None]
    """When the last of these was detected; null if nothing has drifted."""
    created_at: Mapped[datetime] = mapped_column(default=now)
