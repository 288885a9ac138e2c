"""The tables of the audit log, and of the hashes by which people are recognised whose data was erased."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.database import Base, BigInteger, Json


class Action(StrEnum):
    """What the audit log records: everything that changes, exports or looks up personal data or who may do so."""

    EXAMPLES_ADDED = "examples_added"
    EXAMPLES_REMOVED = "examples_removed"
    EXAMPLES_REPLACED = "examples_replaced"
    EXAMPLES_READ = "examples_read"
    EXAMPLES_EXPORTED = "examples_exported"
    RETURNED_ACCEPTED = "returned_accepted"
    RETURNED_DISCARDED = "returned_discarded"
    LABELS_ADDED = "labels_added"
    PREDICTIONS_RECORDED = "predictions_recorded"
    SUBJECT_LOOKED_UP = "subject_looked_up"
    SUBJECT_EXPORTED = "subject_exported"
    SUBJECT_CORRECTED = "subject_corrected"
    SUBJECT_RESTRICTED = "subject_restricted"
    RESTRICTION_LIFTED = "restriction_lifted"
    ERASURE_REQUESTED = "erasure_requested"
    ERASURE_APPROVED = "erasure_approved"
    ERASURE_HELD = "erasure_held"
    ERASURE_REFUSED = "erasure_refused"
    ERASURE_WITHDRAWN = "erasure_withdrawn"
    ERASURE_EXTENDED = "erasure_extended"
    ERASURE_RETRIED = "erasure_retried"
    ERASURES_REPLAYED = "erasures_replayed"
    REGISTER_EXPORTED = "register_exported"
    MODEL_CREATED = "model_created"
    MODEL_CHANGED = "model_changed"
    MODEL_DELETED = "model_deleted"
    MODEL_HELD = "model_held"
    MODEL_RESUMED = "model_resumed"
    POLICY_CHANGED = "policy_changed"
    WEIGHTS_IMPORTED = "weights_imported"
    WEIGHTS_DOWNLOADED = "weights_downloaded"
    ONNX_DOWNLOADED = "onnx_downloaded"
    COEFFICIENTS_READ = "coefficients_read"
    BUNDLE_DOWNLOADED = "bundle_downloaded"
    VERSION_PROMOTED = "version_promoted"
    VERSION_ACCEPTED = "version_accepted"
    VERSION_DISCARDED = "version_discarded"
    JOB_REQUESTED = "job_requested"
    JOB_CANCELLED = "job_cancelled"
    ENCODER_UPLOADED = "encoder_uploaded"
    ENCODER_DELETED = "encoder_deleted"
    ANALYSIS_REQUESTED = "analysis_requested"
    ANALYSIS_READ = "analysis_read"
    KEY_CREATED = "key_created"
    KEY_REVOKED = "key_revoked"
    WEBHOOK_CREATED = "webhook_created"
    WEBHOOK_TESTED = "webhook_tested"
    WEBHOOK_DELETED = "webhook_deleted"
    SIGNED_IN = "signed_in"
    SIGNED_OUT = "signed_out"


COPIES = (
    Action.WEIGHTS_DOWNLOADED,
    Action.ONNX_DOWNLOADED,
    Action.COEFFICIENTS_READ,
    Action.BUNDLE_DOWNLOADED,
    Action.EXAMPLES_EXPORTED,
)
"""Actions after which somebody has a copy of a version or of the examples."""
LISTED_COPIES = ", ".join(f"'{action}'" for action in COPIES)


class AuditEntry(Base):
    """An action, who performed it, when and from where. It names no person: no subject, no id and no value of data.

    Rows are never changed (triggers reject it on both databases); they are deleted when the retention period ends.
    """

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_at", "at"),
        Index(
            "ix_audit_entries_erasure_id",
            "erasure_id",
            sqlite_where=text("erasure_id IS NOT NULL"),
            postgresql_where=text("erasure_id IS NOT NULL"),
        ),
        # the few copies among all actions: receipts list them
        Index(
            "ix_audit_entries_copies",
            "model",
            "id",
            sqlite_where=text(f"action IN ({LISTED_COPIES})"),
            postgresql_where=text(f"action IN ({LISTED_COPIES})"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    at: Mapped[datetime] = mapped_column(default=now)
    actor: Mapped[str] = mapped_column(String(20))
    """Id of the API key."""
    action: Mapped[str] = mapped_column(String(40))
    # names and ids without foreign keys: entries outlive what they are about
    model: Mapped[str | None] = mapped_column(String(63))
    version: Mapped[int | None]
    position: Mapped[int | None] = mapped_column(BigInteger)
    """Of an export: the ledger position that it shows."""
    erasure_id: Mapped[str | None] = mapped_column(String(36))
    job_id: Mapped[str | None] = mapped_column(String(36))
    object_id: Mapped[str | None] = mapped_column(String(36))
    """Id of the key or webhook that the action is about."""
    client: Mapped[str | None] = mapped_column(String(45))
    """IP address that the request came from."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    counts: Mapped[dict[str, int] | None] = mapped_column(Json)


class Suppression(Base):
    """A keyed hash of a person whose erasure was completed, by which data of the person is recognised if it returns."""

    __tablename__ = "suppressions"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    """Grows with each completed erasure: a batch was checked completely if this has not grown since."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    expires_at: Mapped[datetime] = mapped_column(index=True)
