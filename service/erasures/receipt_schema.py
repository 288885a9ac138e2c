"""The shape of a receipt, for the OpenAPI document: `core.erasure.report` writes it, and it is returned as stored."""

from typing import Any

from pydantic import Field

from core.erasure.report import FILES, Familiarity, TrailEntry, VersionFates
from service.http.response_model import ResponseModel


class DeletedResponse(ResponseModel):
    """Numbers of deleted items."""

    examples: int | None = None
    files: int | None = Field(None, alias=FILES)
    versions: int | None = None


class ReceiptModelResponse(ResponseModel):
    """What was done in one model. Fields that do not apply to the method are left out."""

    model: str
    examples: int
    """Number of the person's examples in this model."""
    method: str | None = None
    """`adapted`, `retrained`, `withdrawn`, `unknown` or `deleted`."""
    words: str | None = None
    """Description of the method in words."""
    version: int | None = None
    """The version that does not depend on the person's examples."""
    sha256: str | None = None
    """SHA-256 of that version's file."""
    certificate: dict[str, Any] | None = None
    """Certificate of that version."""
    disagreement: float | None = None
    """Fraction of predictions in which a full retrain differs from that version."""
    tolerance: float | None = None
    """Largest bound that the policy allows, relative to the length of the weights."""
    audit: Familiarity | None = None
    deleted: DeletedResponse | None = None
    versions: VersionFates | None = None
    checked: dict[str, int] | None = None
    """Number of remaining items found in each place that was searched after the erasure."""
    database: str | None = None
    """How deleted rows were removed from the database's files."""
    caches: str | None = None
    kept_until: str | None = None
    """Date when the last version that was trained on the person's examples is purged."""


class ReceiptResponse(ResponseModel):
    """Record of what was done for one erasure request. It does not identify the person."""

    number: int
    erasure: str
    """Id of the erasure."""
    subject_token: str
    """Keyed hash in place of the person."""
    received_at: str
    due_at: str
    extended: bool
    late: bool
    completed_at: str
    trail: list[TrailEntry]
    """Actions on the request, in order."""
    found: int
    """Number of the person's examples."""
    statement: str
    models: list[ReceiptModelResponse]
    previous: str
    """Hash of the previous receipt."""
    sha256: str
