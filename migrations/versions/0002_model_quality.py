"""Model quality: event times, sources, quarantine, pending examples, quality windows, drift reports, the gate."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
MOMENT = sa.DateTime(timezone=True)
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.String().with_variant(sa.String(collation="C"), "postgresql")

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def create_partial_index(name: str, table: str, columns: list[str], where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def upgrade() -> None:
    op.add_column("examples", sa.Column("time", MOMENT, nullable=True))
    op.add_column("examples", sa.Column("source", sa.String(length=200), nullable=True))
    op.add_column("examples", sa.Column("quarantine", sa.Integer(), nullable=True))
    op.add_column("examples", sa.Column("unseen", sa.Text(), nullable=True))
    op.drop_index("uq_examples_id_in_force", "examples")
    in_use = "removed IS NULL OR quarantine IS NOT NULL"
    create_partial_index("uq_examples_id_in_force", "examples", ["model_id", "id"], in_use, unique=True)
    create_partial_index("ix_examples_source", "examples", ["model_id", "source"], "source IS NOT NULL")
    create_partial_index("ix_examples_quarantine", "examples", ["model_id", "quarantine"], "quarantine IS NOT NULL")
    create_partial_index("ix_examples_unseen", "examples", ["model_id", "position"], "unseen IS NOT NULL")

    op.add_column("models", sa.Column("confirmed", sa.Integer(), nullable=True))
    op.add_column("models", sa.Column("scored_position", BIG, nullable=False, server_default="0"))
    for count in ("covered_position", "accepted_position", "quarantined_count", "pending_count"):
        op.add_column("models", sa.Column(count, BIG, nullable=False, server_default="0"))
    op.add_column("models", sa.Column("accepted_by", sa.String(length=20), nullable=True))
    # what a model learnt before the upgrade was never scored, and its champion is where the gate begins
    op.execute(sa.text("UPDATE models SET scored_position = head, confirmed = champion"))
    op.add_column("versions", sa.Column("gate", JSON, nullable=True))

    op.create_table(
        "pending_examples",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("subject", sa.LargeBinary(), nullable=True),
        sa.Column("holdout", sa.Boolean(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("time", MOMENT, nullable=True),
        sa.Column("source", sa.String(length=200), nullable=True),
        sa.Column("layout_position", BIG, nullable=False),
        sa.Column("x", sa.LargeBinary(), nullable=False),
        sa.Column("unseen", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("mean", sa.LargeBinary(), nullable=True),
        sa.Column("challenger", sa.Integer(), nullable=True),
        sa.Column("challenger_mean", sa.LargeBinary(), nullable=True),
        sa.Column("restricted", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_pending_examples_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", "id", name="pk_pending_examples"),
    )
    op.create_index("ix_pending_examples_created_at", "pending_examples", ["model_id", "created_at"])
    create_partial_index("ix_pending_examples_source", "pending_examples", ["model_id", "source"], "source IS NOT NULL")
    create_partial_index(
        "ix_pending_examples_subject", "pending_examples", ["subject", "model_id"], "subject IS NOT NULL"
    )

    op.create_table(
        "recorded_predictions",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("mean", sa.LargeBinary(), nullable=True),
        sa.Column("challenger", sa.Integer(), nullable=True),
        sa.Column("challenger_mean", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name="fk_recorded_predictions_model_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model_id", "position", name="pk_recorded_predictions"),
    )

    op.create_table(
        "encodings",
        sa.Column("model_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("encoder", sa.String(length=32), nullable=False),
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("model_id", "encoder", "position", name="pk_encodings"),
        sqlite_with_rowid=False,
    )
    create_partial_index("ix_encodings_failed", "encodings", ["model_id", "position"], "length(data) = 0")

    op.create_table(
        "encoders",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("inputs", JSON, nullable=False),
        sa.Column("outputs", JSON, nullable=False),
        sa.Column("features", sa.Integer(), nullable=False),
        sa.Column("trained_on", sa.String(length=8), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_encoders"),
    )

    op.create_table(
        "quality_windows",
        sa.Column("id", BIG, nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("start", MOMENT, nullable=False),
        sa.Column("first_position", BIG, nullable=False),
        sa.Column("last_position", BIG, nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("heaviest", sa.Double(), nullable=False),
        sa.Column("champion", sa.Integer(), nullable=False),
        sa.Column("frozen", sa.Integer(), nullable=True),
        sa.Column("challenger", sa.Integer(), nullable=True),
        sa.Column("metrics", JSON, nullable=False),
        sa.Column("scores", sa.LargeBinary(), nullable=True),
        sa.Column("alarm", sa.Boolean(), nullable=False),
        sa.Column("rounded", sa.Boolean(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_quality_windows_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_quality_windows"),
    )
    op.create_index("ix_quality_windows_start", "quality_windows", ["model_id", "start"])
    op.create_index("ix_quality_windows_position", "quality_windows", ["model_id", "first_position"])

    op.create_table(
        "drift_reports",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("report", JSON, nullable=True),
        sa.Column("drifted", JSON, nullable=False),
        sa.Column("detected_at", MOMENT, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_drift_reports_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model_id", name="pk_drift_reports"),
    )

    op.create_table(
        "analyses",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("request", JSON, nullable=False),
        sa.Column("position", BIG, nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("cost", JSON, nullable=True),
        sa.Column("requested_by", sa.String(length=20), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_analyses_model_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_analyses"),
    )
    op.create_index("ix_analyses_model", "analyses", ["model_id", "created_at", "id"])
    op.create_index("ix_analyses_job_id", "analyses", ["job_id"])
    op.add_column("erasures", sa.Column("repeats", sa.String(length=36), nullable=True))
    kinds = ("removed", "corrected", "requested", "model_deleted")
    op.create_table(
        "journal_entries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.Enum(*kinds, name="journalkind", native_enum=False, length=20), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=True),
        sa.Column("erasure_id", sa.String(length=36), nullable=True),
        sa.Column("content", JSON, nullable=False),
        sa.Column("positions", JSON, nullable=True),
        sa.Column("first", BIG, nullable=True),
        sa.Column("last", BIG, nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("written", sa.Boolean(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_journal_entries"),
    )
    op.create_index("ix_journal_entries_last", "journal_entries", ["model_id", "last"])
    op.create_index("ix_journal_entries_file", "journal_entries", ["file"])
    op.create_index("ix_journal_entries_erasure_id", "journal_entries", ["erasure_id"])
    create_partial_index("ix_journal_entries_unwritten", "journal_entries", ["file"], "NOT written")
    op.create_table(
        "journal_files",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_journal_files"),
    )


def downgrade() -> None:
    op.drop_table("journal_files")
    op.drop_table("journal_entries")
    op.drop_column("erasures", "repeats")
    op.drop_table("analyses")
    op.drop_table("drift_reports")
    op.drop_table("quality_windows")
    op.drop_table("encoders")
    op.drop_table("encodings")
    op.drop_table("recorded_predictions")
    op.drop_table("pending_examples")
    op.drop_column("versions", "gate")
    for column in (
        "pending_count",
        "quarantined_count",
        "accepted_position",
        "accepted_by",
        "covered_position",
        "scored_position",
        "confirmed",
    ):
        op.drop_column("models", column)
    for index in ("ix_examples_unseen", "ix_examples_quarantine", "ix_examples_source", "uq_examples_id_in_force"):
        op.drop_index(index, "examples")
    for column in ("unseen", "quarantine", "source", "time"):
        op.drop_column("examples", column)
    create_partial_index("uq_examples_id_in_force", "examples", ["model_id", "id"], "removed IS NULL", unique=True)
