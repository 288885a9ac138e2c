"""Initial schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_records",
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("key_digest", name="pk_idempotency_records"),
    )
    op.create_index("ix_idempotency_records_created_at", "idempotency_records", ["created_at"], unique=False)

    op.create_table(
        "examples",
        sa.Column("model_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("removed", BIG, nullable=True),
        sa.Column("y", sa.Double(), nullable=False),
        sa.Column("holdout", sa.Boolean(), nullable=False),
        sa.Column("id", sa.String().with_variant(sa.String(collation="C"), "postgresql"), nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("x", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("model_id", "position", name="pk_examples"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_examples_removed",
        "examples",
        ["model_id", "removed"],
        unique=False,
        sqlite_where=sa.text("removed IS NOT NULL"),
        postgresql_where=sa.text("removed IS NOT NULL"),
    )
    op.create_index(
        "ix_examples_subject",
        "examples",
        ["subject", "model_id"],
        unique=False,
        sqlite_where=sa.text("subject IS NOT NULL"),
        postgresql_where=sa.text("subject IS NOT NULL"),
    )
    op.create_index(
        "uq_examples_id_in_force",
        "examples",
        ["model_id", "id"],
        unique=True,
        sqlite_where=sa.text("removed IS NULL"),
        postgresql_where=sa.text("removed IS NULL"),
    )

    if op.get_bind().dialect.name == "postgresql":
        # numbers of measurements hardly compress, but trying costs time
        op.execute("ALTER TABLE examples ALTER COLUMN x SET STORAGE EXTERNAL")
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("person", sa.Boolean(), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("models", JSON, nullable=True),
        sa.Column("quota", JSON, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("last_used_at", MOMENT, nullable=True),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("revoked_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
    )
    op.create_table(
        "key_usage",
        sa.Column("key_id", sa.String(length=20), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("rows", BIG, nullable=False),
        sa.Column("bytes", BIG, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_key_usage_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key_id", "day", name="pk_key_usage"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("events", JSON, nullable=True),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("failing_since", MOMENT, nullable=True),
        sa.Column("disabled_at", MOMENT, nullable=True),
        sa.Column("disabled_reason", sa.String(length=200), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", BIG, nullable=False),
        sa.Column("webhook_id", sa.String(length=36), nullable=False),
        sa.Column("message_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=30), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("pending", "delivered", "given_up", name="deliverystate", native_enum=False, length=20),
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", MOMENT, nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(length=200), nullable=True),
        sa.Column("delivered_at", MOMENT, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_created_at", "deliveries", ["created_at"], unique=False)
    op.create_index("ix_deliveries_due", "deliveries", ["state", "next_attempt_at"], unique=False)
    op.create_index("ix_deliveries_listed", "deliveries", ["webhook_id", "id"], unique=False)
    op.create_table(
        "sign_ins",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.String(length=20), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name="fk_sign_ins_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name="pk_sign_ins"),
    )
    op.create_index("ix_sign_ins_key_id", "sign_ins", ["key_id"])
    op.create_index("ix_sign_ins_expires_at", "sign_ins", ["expires_at"])
    op.create_table(
        "models",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("training", JSON, nullable=False),
        sa.Column("policy", JSON, nullable=False),
        sa.Column("created_by", sa.String(length=20), nullable=True),
        sa.Column("head", BIG, nullable=False),
        sa.Column("layout_position", BIG, nullable=False),
        sa.Column("train_count", BIG, nullable=False),
        sa.Column("holdout_count", BIG, nullable=False),
        sa.Column("removed_count", BIG, nullable=False),
        sa.Column("expired_position", BIG, nullable=False),
        sa.Column("pruned_version", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("champion", sa.Integer(), nullable=True),
        sa.Column("tip", sa.Integer(), nullable=True),
        sa.Column("held_at", MOMENT, nullable=True),
        sa.Column("held_reason", sa.String(length=200), nullable=True),
        sa.Column("held_by", sa.String(length=20), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.CheckConstraint("head >= 0", name="ck_models_head"),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("name", name="uq_models_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )
    op.create_table(
        "changes",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("last", BIG, autoincrement=False, nullable=False),
        sa.Column("first", BIG, nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "added",
                "removed",
                "replaced",
                "regularizer",
                "architecture",
                "input",
                "target",
                "loss",
                name="changekind",
                native_enum=False,
                length=20,
            ),
            nullable=False,
        ),
        sa.Column("value", JSON, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_changes_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", "last", name="pk_changes"),
    )
    op.create_index(
        "ix_changes_spec",
        "changes",
        ["model_id", "last"],
        unique=False,
        sqlite_where=sa.text("value IS NOT NULL"),
        postgresql_where=sa.text("value IS NOT NULL"),
    )
    op.create_index(
        "ix_changes_replaced",
        "changes",
        ["model_id", "last"],
        unique=False,
        sqlite_where=sa.text("kind = 'replaced'"),
        postgresql_where=sa.text("kind = 'replaced'"),
    )
    op.create_table(
        "comparisons",
        sa.Column("id", BIG, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("adapted", sa.Integer(), nullable=False),
        sa.Column("retrained", sa.Integer(), nullable=False),
        sa.Column("result", JSON, nullable=False),
        sa.Column("within_tolerance", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_comparisons_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_comparisons"),
    )
    op.create_index("ix_comparisons_model_id", "comparisons", ["model_id"], unique=False)

    op.create_table(
        "holdout_samples",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("threshold", sa.Double(), nullable=False),
        sa.Column("positions", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_holdout_samples_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", name="pk_holdout_samples"),
    )
    op.create_table(
        "imports",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_imports_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", name="pk_imports"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum("adapt", "retrain", "erase", "rebuild", "analyse", name="jobkind", native_enum=False, length=20),
            nullable=False,
        ),
        sa.Column(
            "state",
            sa.Enum(
                "queued", "running", "succeeded", "failed", "cancelled", name="jobstate", native_enum=False, length=20
            ),
            nullable=False,
        ),
        sa.Column("progress", sa.Double(), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", JSON, nullable=True),
        sa.Column("from_position", BIG, nullable=False),
        sa.Column("to_position", BIG, nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("target", sa.Integer(), nullable=True),
        sa.Column("unmerged", sa.String(length=36), nullable=False),
        sa.Column("requested_by", sa.String(length=20), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("queue", sa.String(length=20), nullable=False),
        sa.Column("due_at", MOMENT, nullable=True),
        sa.Column("sent_at", MOMENT, nullable=True),
        sa.Column("lease_owner", sa.String(length=200), nullable=True),
        sa.Column("lease_expires_at", MOMENT, nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("traceparent", sa.String(length=55), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_jobs_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("model_id", "kind", "due_at", name="uq_jobs_model_id_kind_due_at"),
    )
    op.create_index("ix_jobs_listed", "jobs", ["created_at", "id"], unique=False)
    op.create_index("ix_jobs_of_model", "jobs", ["model_id", "kind", "created_at"], unique=False)
    op.create_index(
        "uq_jobs_queued",
        "jobs",
        ["model_id", "kind", "unmerged"],
        unique=True,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "uq_jobs_running",
        "jobs",
        ["model_id", "kind"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )

    op.create_table(
        "promotions",
        sa.Column("id", BIG, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("by", sa.String(length=20), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_promotions_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_promotions"),
    )
    op.create_index("ix_promotions_model_id", "promotions", ["model_id"], unique=False)

    op.create_table(
        "outbox",
        sa.Column("id", BIG, nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_outbox_job_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_job_id", "outbox", ["job_id"], unique=False)

    op.create_table(
        "removals",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("removed", sa.Integer(), nullable=False),
        sa.Column("unknown", sa.Integer(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_removals_job_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_removals_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_removals"),
    )
    op.create_index("ix_removals_model_id", "removals", ["model_id"], unique=False)

    op.create_table(
        "versions",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "kind", sa.Enum("trained", "adapted", name="versionkind", native_enum=False, length=20), nullable=False
        ),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("position", BIG, nullable=False),
        sa.Column("removals_position", BIG, nullable=False),
        sa.Column(
            "state",
            sa.Enum("champion", "candidate", "superseded", "purged", name="versionstate", native_enum=False, length=20),
            nullable=False,
        ),
        sa.Column("method", sa.String(length=20), nullable=False),
        sa.Column("memory", JSON, nullable=False),
        sa.Column("dataset_digest", sa.String(length=64), nullable=False),
        sa.Column("metrics", JSON, nullable=False),
        sa.Column("evaluation", JSON, nullable=True),
        sa.Column("certificate", JSON, nullable=True),
        sa.Column("cost", JSON, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("file", sa.String(length=500), nullable=False),
        sa.Column("mlflow", JSON, nullable=True),
        sa.Column("mlflow_folder", sa.String(length=500), nullable=True),
        sa.Column("purge_at", MOMENT, nullable=True),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_versions_job_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_versions_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", "number", name="pk_versions"),
    )
    op.create_index("ix_removals_job_id", "removals", ["job_id"], unique=False)
    op.create_index("ix_versions_job_id", "versions", ["job_id"], unique=False)
    begun = ("unmatched", "held", "received", "adapting", "verifying", "purging")
    states = (*begun, "completed", "failed", "refused", "withdrawn", "restricted", "lifted")
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("requested_by", sa.String(length=20), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("near_matches", sa.Integer(), nullable=False),
        sa.Column("state", sa.Enum(*states, name="erasurestate", native_enum=False, length=20), nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("warned_at", MOMENT, nullable=True),
        sa.Column("extension", sa.String(length=500), nullable=True),
        sa.Column("refusal", sa.String(length=500), nullable=True),
        sa.Column("completed_at", MOMENT, nullable=True),
        sa.Column("receipt", BIG, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_erasures"),
    )
    op.create_index("ix_erasures_listed", "erasures", ["created_at", "id"], unique=False)
    op.create_index("ix_erasures_received", "erasures", ["received_at", "id"], unique=False)
    op.create_table(
        "erasure_subjects",
        sa.Column("erasure_id", sa.String(length=36), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=True),
        sa.Column("restriction", sa.Boolean(create_constraint=False), nullable=False),
        sa.ForeignKeyConstraint(
            ["erasure_id"], ["erasures.id"], name="fk_erasure_subjects_erasure_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("erasure_id", "token", name="pk_erasure_subjects"),
        sa.UniqueConstraint("subject", "restriction", name="uq_erasure_subjects_subject_restriction"),
    )
    op.create_index("ix_erasure_subjects_token", "erasure_subjects", ["token"], unique=False)
    op.create_table(
        "erasure_parts",
        sa.Column("erasure_id", sa.String(length=36), nullable=False),
        sa.Column("model_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model", sa.String(length=63), nullable=False),
        sa.Column("positions", JSON, nullable=False),
        sa.Column("restricted", JSON, nullable=False),
        sa.Column("examples", sa.Integer(), nullable=False),
        sa.Column("first_position", BIG, nullable=False),
        sa.Column("removal_position", BIG, nullable=False),
        sa.Column("newest_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Enum(*states, name="erasurestate", native_enum=False, length=20), nullable=False),
        sa.Column("error", JSON, nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("report", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["erasure_id"], ["erasures.id"], name="fk_erasure_parts_erasure_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("erasure_id", "model_id", name="pk_erasure_parts"),
    )
    op.create_index("ix_erasure_parts_model_id", "erasure_parts", ["model_id"], unique=False)
    op.create_table(
        "receipts",
        sa.Column("number", BIG, autoincrement=False, nullable=False),
        sa.Column("erasure_id", sa.String(length=36), nullable=False),
        sa.Column("leaf", BIG, nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=100), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("head", sa.JSON(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_receipts"),
    )
    op.create_index("ix_receipts_erasure_id", "receipts", ["erasure_id"], unique=False)
    create_register()
    op.create_table(
        "tracking_events",
        sa.Column("id", BIG, nullable=False),
        sa.Column(
            "kind",
            sa.Enum("job", "aliases", "purged", "deleted", name="trackingeventkind", native_enum=False, length=20),
            nullable=False,
        ),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=63), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(length=200), nullable=True),
        sa.Column("attempted_at", MOMENT, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tracking_events"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "mutexes",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_mutexes"),
    )
    op.create_table(
        "metadata",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_metadata"),
    )
    # the newest signed head; whoever appends to the register holds this row
    op.execute(sa.text("INSERT INTO metadata (name, value) VALUES ('register', :empty)").bindparams(empty=b""))
    op.create_table(
        "orphan_files",
        sa.Column("path", sa.String(length=500), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("path", name="pk_orphan_files"),
    )
    create_audit_log()


def create_audit_log() -> None:
    """Create the tables of the audit log, whose rows cannot be changed, and of returning subjects."""
    op.create_table(
        "audit_entries",
        sa.Column("id", BIG, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("actor", sa.String(length=20), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=63), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("position", BIG, nullable=True),
        sa.Column("erasure_id", sa.String(length=36), nullable=True),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("object_id", sa.String(length=36), nullable=True),
        sa.Column("client", sa.String(length=45), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("counts", JSON, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"])
    copies = (
        "action IN ('weights_downloaded', 'onnx_downloaded', 'coefficients_read', 'bundle_downloaded',"
        " 'examples_exported')"
    )
    for name, columns, condition in (
        ("erasure_id", ["erasure_id"], "erasure_id IS NOT NULL"),
        ("copies", ["model", "id"], copies),
    ):
        where = sa.text(condition)
        op.create_index(
            f"ix_audit_entries_{name}", "audit_entries", columns, sqlite_where=where, postgresql_where=where
        )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE TRIGGER audit_entries_unchanged BEFORE UPDATE ON audit_entries"
            " BEGIN SELECT RAISE(ABORT, 'audit entries cannot be changed'); END"
        )
    else:
        op.execute(
            "CREATE FUNCTION reject_change() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION '% entries cannot be changed', TG_TABLE_NAME; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_entries_unchanged BEFORE UPDATE ON audit_entries"
            " FOR EACH ROW EXECUTE FUNCTION reject_change()"
        )
    op.create_table(
        "suppressions",
        sa.Column("id", BIG, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_suppressions"),
        sa.UniqueConstraint("hash", name="uq_suppressions_hash"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_suppressions_expires_at", "suppressions", ["expires_at"])


def create_register() -> None:
    """Create the tables of the register of erasures."""
    op.create_table(
        "register_leaves",
        sa.Column("index", BIG, autoincrement=False, nullable=False),
        sa.Column("commitment", sa.LargeBinary(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("record", sa.Text(), nullable=True),
        sa.Column("erasure_id", sa.String(length=36), nullable=True),
        sa.Column("filed", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("index", name="pk_register_leaves"),
    )
    op.create_index("ix_register_leaves_erasure_id", "register_leaves", ["erasure_id"], unique=False)
    for name, column, condition in (
        ("ix_register_leaves_unfiled", "index", sa.text("NOT filed")),
        ("ix_register_leaves_created_at", "created_at", sa.text("record IS NOT NULL")),
    ):
        op.create_index(name, "register_leaves", [column], sqlite_where=condition, postgresql_where=condition)
    op.create_table(
        "register_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("index", BIG, autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "index", name="pk_register_nodes"),
    )
    op.create_table(
        "register_keys",
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("public_key", sa.String(length=500), nullable=False),
        sa.Column("until", BIG, nullable=True),
        sa.Column("head", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_register_keys"),
    )
    op.create_table(
        "register_timestamps",
        sa.Column("size", BIG, autoincrement=False, nullable=False),
        sa.Column("head", sa.JSON(), nullable=False),
        sa.Column("response", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("size", name="pk_register_timestamps"),
    )


def downgrade() -> None:
    op.drop_table("suppressions")
    op.drop_table("audit_entries")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION reject_change()")
    op.drop_table("orphan_files")
    op.drop_table("metadata")
    op.drop_table("mutexes")
    op.drop_table("tracking_events")
    for table in ("timestamps", "keys", "nodes", "leaves"):
        op.drop_table(f"register_{table}")
    op.drop_table("receipts")
    op.drop_table("erasure_parts")
    op.drop_table("erasure_subjects")
    op.drop_table("erasures")
    op.drop_table("versions")
    op.drop_table("removals")
    op.drop_table("outbox")
    op.drop_table("promotions")
    op.drop_table("jobs")
    op.drop_table("holdout_samples")
    op.drop_table("imports")
    op.drop_table("comparisons")
    op.drop_table("changes")
    op.drop_table("workers")
    op.drop_table("models")
    op.drop_table("deliveries")
    op.drop_table("webhooks")
    op.drop_table("sign_ins")
    op.drop_table("key_usage")
    op.drop_table("keys")
    op.drop_table("examples")
    op.drop_table("idempotency_records")
