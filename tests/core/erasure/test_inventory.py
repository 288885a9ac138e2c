"""Nothing that is kept is forgotten by whoever has to delete it."""

from __future__ import annotations

from sqlalchemy import JSON

from core import tables
from core.erasure import receipts
from core.erasure.inventory import PURGED
from core.register import files, journal_files
from core.versions.store import folder_of

SHORT = 64
"""Characters of a name, a word of ours or a hash."""


def test_the_inventory_covers_every_table() -> None:
    assert set(PURGED) == set(tables.Base.metadata.tables)
    assert all(PURGED.values())


def test_every_column_that_can_hold_bytes_of_a_person_is_known() -> None:
    """A new column that holds free text or bytes must be thought of when people are erased."""
    held = {
        f"{table.name}.{column.name}"
        for table in tables.Base.metadata.tables.values()
        for column in table.columns
        if column.type.python_type is bytes
        or (column.type.python_type is str and not 0 < (getattr(column.type, "length", 0) or 0) <= SHORT)
        or isinstance(getattr(column.type, "impl", column.type), JSON)
    }
    assert held == {
        "examples.id",
        "imports.content",
        "examples.subject",
        "examples.x",
        "examples.source",
        "encodings.data",
        "encoders.inputs",
        "encoders.outputs",
        "examples.unseen",
        "pending_examples.id",
        "pending_examples.subject",
        "pending_examples.x",
        "pending_examples.source",
        "pending_examples.unseen",
        "pending_examples.mean",
        "pending_examples.challenger_mean",
        # predictions row by row, deleted with the version that made them; then rounded metrics of ten rows or more
        "quality_windows.scores",
        "quality_windows.metrics",
        "analyses.request",
        "analyses.result",
        "analyses.cost",
        "drift_reports.report",
        "drift_reports.drifted",  # names of columns
        "erasure_subjects.subject",
        "holdout_samples.positions",
        "webhooks.secret",
        "idempotency_records.key_digest",
        "idempotency_records.request_digest",
        "idempotency_records.body",
        "keys.digest",
        "sign_ins.digest",
        "metadata.value",
        # said by callers of a request, and deleted with it, but for why it was refused
        "erasures.reason",
        "erasures.extension",
        "erasures.refusal",
        # our own words and figures, of whole models
        "webhooks.url",
        "webhooks.events",
        "webhooks.disabled_reason",
        "deliveries.body",
        "deliveries.error",
        "audit_entries.counts",
        "changes.value",
        "comparisons.result",
        "tracking_events.error",
        "jobs.lease_owner",
        "mutexes.owner",
        "orphan_files.owner",
        "workers.name",
        "erasure_parts.error",
        "erasure_parts.report",
        "erasure_parts.positions",
        "erasure_parts.restricted",
        "jobs.error",
        "jobs.message",
        "keys.models",
        "keys.name",
        "keys.quota",
        "keys.scopes",
        "orphan_files.path",
        "models.held_reason",
        "models.policy",
        "models.spec",
        "models.training",
        # keyed hashes and positions
        "journal_entries.content",
        "journal_entries.positions",
        # tokens and words of ours; commitments are salted
        "receipts.payload",
        "receipts.signature",
        "receipts.head",
        "register_leaves.commitment",
        "register_leaves.salt",
        "register_leaves.record",
        "register_nodes.hash",
        "register_keys.public_key",
        "register_keys.head",
        "register_timestamps.head",
        "register_timestamps.response",
        "versions.salt",
        "recorded_predictions.challenger_mean",
        "recorded_predictions.mean",
        "versions.certificate",
        "versions.cost",
        "versions.evaluation",
        "versions.gate",
        "versions.file",
        "versions.memory",
        "versions.metrics",
        "versions.mlflow",
        "versions.mlflow_folder",
    }


def test_every_folder_of_the_store_is_searched() -> None:
    assert folder_of(7).split("/") == ["models", "7"]
    assert (receipts.FOLDER, files.FOLDER, journal_files.FOLDER) == ("receipts", "register", "journal")
