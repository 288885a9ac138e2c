"""The tables of versions, promotions, comparisons with full retrains, and imported weights."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json, enum_column
from core.kprior.certificate.certificate import Certificate
from core.tables.documents import (
    CertificateColumn,
    ComparisonDocument,
    CostDocument,
    EvaluationDocument,
    GateDocument,
    MemoryDocument,
    MlflowPlace,
)
from core.tables.jobs import Job
from core.tables.models import Model


class VersionKind(StrEnum):
    TRAINED = "trained"
    ADAPTED = "adapted"


class VersionState(StrEnum):
    """States of a version."""

    CHAMPION = "champion"
    CANDIDATE = "candidate"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    """Not promoted, because it failed the gate."""
    PURGED = "purged"


FIRST = 1
"""Number of the frozen version, with which later ones are compared: the model without any updates."""


def same_as_position(context: DefaultExecutionContext) -> int:
    """The default of `removals_position`."""
    return int(context.get_current_parameters()["position"])  # type: ignore[no-untyped-call]


class Version(Base):
    """A model state and its metrics. The state itself is a file in the store."""

    __tablename__ = "versions"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[VersionKind] = mapped_column(enum_column(VersionKind))
    parent: Mapped[int | None]
    position: Mapped[int] = mapped_column(BigInteger)
    removals_position: Mapped[int] = mapped_column(BigInteger, default=same_as_position)
    """Position up to which removals are reflected: `position`, or a later one in a version that was rebuilt."""
    state: Mapped[VersionState] = mapped_column(enum_column(VersionState))
    method: Mapped[str] = mapped_column(String(20))
    memory: Mapped[MemoryDocument] = mapped_column(Json)
    dataset_digest: Mapped[str] = mapped_column(String(64))
    """Digest of the training examples that the version reflects."""
    metrics: Mapped[dict[str, float]] = mapped_column(Json)
    """Metrics on the holdout."""
    evaluation: Mapped[EvaluationDocument | None] = mapped_column(Json)
    """Data for charts: confusion, reliability, the first version on the same holdout."""
    certificate: Mapped[Certificate | None] = mapped_column(CertificateColumn)
    gate: Mapped[GateDocument | None] = mapped_column(Json)
    """The comparison with the champion and with the last confirmed version that decided whether it was promoted."""
    cost: Mapped[CostDocument] = mapped_column(Json)
    sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the file; deleted when the version is purged for an erasure, because it would confirm a guess. If the
    policy's retention purged the version, the hash and the metrics stay."""
    salt: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Salt of the commitment by which receipts name the version; deleted with the hash."""
    file: Mapped[str] = mapped_column(String(500))
    """Path in the store."""
    mlflow: Mapped[MlflowPlace | None] = mapped_column(Json)
    mlflow_folder: Mapped[str | None] = mapped_column(String(500))
    """MLflow's folder of the weights, recorded before they are uploaded, so that they can always be deleted."""
    purge_at: Mapped[datetime | None]
    """When a version trained on an erased person's data is purged, if the policy keeps such versions for a while."""
    job_id: Mapped[str | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Promotion(Base):
    """A promotion of a version to champion. Rows are never changed."""

    __tablename__ = "promotions"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    version: Mapped[int]
    previous: Mapped[int | None]
    by: Mapped[str] = mapped_column(String(20))
    """Id of the key that requested the promotion, or "policy" or "erasure"."""
    created_at: Mapped[datetime] = mapped_column(default=now)


class Comparison(Base):
    """An adapted version and a full retrain at the same position."""

    __tablename__ = "comparisons"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), index=True)
    position: Mapped[int] = mapped_column(BigInteger)
    adapted: Mapped[int]
    retrained: Mapped[int]
    result: Mapped[ComparisonDocument] = mapped_column(Json)
    within_tolerance: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(default=now)


class ImportedWeights(Base):
    """Imported weights, until the first version is made from them."""

    __tablename__ = "imports"

    model_id: Mapped[int] = mapped_column(ForeignKey(Model.id, ondelete="CASCADE"), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    """Encoded by `core/versions/imported_weights.py`."""
    created_at: Mapped[datetime] = mapped_column(default=now)
