"""Nothing that is kept is forgotten by whoever has to delete it."""

from __future__ import annotations

from sqlalchemy import JSON

from core import tables
from core.erasure import receipts
from core.erasure.inventory import PURGED
from core.versions.history import folder_of

SHORT = 64
"""Characters of a name, a word of ours or a hash."""


def test_every_table_says_what_becomes_of_a_person_in_it() -> None:
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
        or isinstance(column.type, JSON)
    }
    assert held == {
        "examples.id",
        "imports.content",
        "examples.subject",
        "examples.x",
        "erasures.subject",
        "holdout_samples.positions",
        "webhooks.secret",
        "answers.digest",
        "answers.request",
        "answers.body",
        "keys.digest",
        "sign_ins.digest",
        "marks.value",
        # said by callers of a request, and deleted with it, but for why it was refused
        "erasures.reason",
        "erasures.extension",
        "erasures.refusal",
        # our own words and figures, of whole models
        "webhooks.url",
        "webhooks.events",
        "webhooks.disabled_why",
        "deliveries.body",
        "deliveries.error",
        "changes.value",
        "comparisons.figures",
        "entries.error",
        "jobs.lease_owner",
        "leases.owner",
        "litter.owner",
        "workers.name",
        "erasure_parts.error",
        "erasure_parts.figures",
        "erasure_parts.positions",
        "erasure_parts.restricted",
        "jobs.error",
        "jobs.message",
        "keys.models",
        "keys.name",
        "keys.scopes",
        "litter.path",
        "models.held_why",
        "models.policy",
        "models.spec",
        "models.training",
        "receipts.body",
        "versions.certificate",
        "versions.cost",
        "versions.evaluation",
        "versions.file",
        "versions.memory",
        "versions.metrics",
        "versions.mlflow",
        "versions.mlflow_folder",
    }


def test_the_folders_of_the_store_are_those_that_are_looked_at() -> None:
    assert folder_of(7).split("/") == ["models", "7"]
    assert receipts.FOLDER == "receipts"
