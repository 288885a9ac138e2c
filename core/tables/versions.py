"""The tables of versions, of what was promoted when, and of adapted versions next to full retrains."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from core.database import Base, BigInteger, Json, enum_column, now
from core.tables.figures import CertificateFigures, ComparisonFigures, EvaluationFigures, MemoryFigures, MlflowPlace
from core.tables.jobs import Job
from core.tables.models import Model


class VersionKind(StrEnum):
    TRAINED = "trained"
    ADAPTED = "adapted"


class VersionState(StrEnum):
    """What a version is to its model."""

    CHAMPION = "champion"
    CANDIDATE = "candidate"
    SUPERSEDED = "superseded"
    PURGED = "purged"


FIRST = 1
"""The version that later ones are held against: what the model would still be, had nothing been done."""


class Version(Base):
    """A model state and what is known about it. The state itself is a file in the store."""

    __tablename__ = "versions"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[VersionKind] = mapped_column(enum_column(VersionKind))
    parent: Mapped[int | None]
    position: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[VersionState] = mapped_column(enum_column(VersionState))
    method: Mapped[str] = mapped_column(String(20))
    memory: Mapped[MemoryFigures] = mapped_column(Json)
    dataset: Mapped[str] = mapped_column(String(64))
    """The digest of the training examples that it stands for."""
    metrics: Mapped[dict[str, float]] = mapped_column(Json)
    """On the holdout."""
    evaluation: Mapped[EvaluationFigures | None] = mapped_column(Json)
    """What dashboards draw beyond the metrics: confusion, reliability, the first version on the same holdout."""
    certificate: Mapped[CertificateFigures | None] = mapped_column(Json)
    cost: Mapped[dict[str, float]] = mapped_column(Json)
    """backward_passes, data_passes and seconds."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Of the file; empty once it is gone, if it knew somebody who was erased: by it a guess could be checked."""
    file: Mapped[str] = mapped_column(String(500))
    """Where in the store."""
    mlflow: Mapped[MlflowPlace | None] = mapped_column(Json)
    mlflow_folder: Mapped[str | None] = mapped_column(String(500))
    """Where MLflow has its weights, noted before they are sent; whatever MLflow itself may have forgotten."""
    purge_at: Mapped[datetime | None]
    """When it is purged, though it knew a person who was erased: policies may keep such versions for a while."""
    job_id: Mapped[str | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Promotion(Base):
    """A version became champion. Rows are only ever added: this is the history."""

    __tablename__ = "promotions"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    version: Mapped[int]
    previous: Mapped[int | None]
    by: Mapped[str] = mapped_column(String(20))
    """The id of the key that asked for it, or "policy"."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class Comparison(Base):
    """An adapted version and a full retrain at the same position."""

    __tablename__ = "comparisons"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    position: Mapped[int] = mapped_column(BigInteger)
    adapted: Mapped[int]
    retrained: Mapped[int]
    figures: Mapped[ComparisonFigures] = mapped_column(Json)
    within_tolerance: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(default=now)


class ImportedWeights(Base):
    """Weights that somebody else found, until the first version is made of them."""

    __tablename__ = "imports"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    """As `core/versions/imports.py` packs them."""
    created_at: Mapped[datetime] = mapped_column(default=now)
