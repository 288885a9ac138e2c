"""The shape of a receipt, for the OpenAPI document. `core.erasure.receipt_content` writes it."""

from typing import Any

from pydantic import Field

from core.erasure.evidence import RowsCommitment
from core.erasure.receipt_content import FILES, Copy, Familiarity, TrailEntry, VersionFates
from service.http.response_model import ResponseModel


class DeletedResponse(ResponseModel):
    """Numbers of deleted items."""

    examples: int | None = None
    files: int | None = Field(None, alias=FILES)
    versions: int | None = None
    analyses: int | None = None
    """Results of analyses."""


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
    commitment: str | None = None
    """SHA-256 of a salt and the SHA-256 of that version's file. The salt is deleted when the version is purged."""
    certificate: dict[str, Any] | None = None
    """Certificate of that version."""
    objective: dict[str, Any] | None = None
    """Parameters of the objective that the version minimises; left out for networks."""
    rows: RowsCommitment | None = None
    """Number and Merkle root of the retained training rows, if a bundle can carry them."""
    disagreement: float | None = None
    """Fraction of predictions in which a full retrain differs from that version."""
    tolerance: float | None = None
    """Largest bound that the policy allows, relative to the length of the weights."""
    encoder: dict[str, str] | None = None
    """Frozen encoder of that version: `kind`, `digest` and what it was `trained_on`, `other` or `examples`."""
    audit: Familiarity | None = None
    deleted: DeletedResponse | None = None
    versions: VersionFates | None = None
    checked: dict[str, int] | None = None
    """Number of remaining items found in each place that was searched after the erasure."""
    database: str | None = None
    """How deleted rows were removed from the database's files."""
    caches: str | None = None
    was_in_use: bool | None = None
    """Whether the version in use when the request was filed had been trained on the person's examples."""
    copies: list[Copy] | None = None
    """Downloads of versions trained on the person's examples, and exports of these examples, from the audit log."""
    kept_until: str | None = None
    """Date when the last version that was trained on the person's examples is purged."""


class ReceiptResponse(ResponseModel):
    """Record of what was done for one erasure request. It does not identify the person."""

    number: int
    erasure: str
    """Id of the erasure."""
    subject_token: str
    """Keyed hash in place of the person's first identifier."""
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
    leaf: int
    """Index of its leaf in the register."""
    key_id: str
    """Id of the key that signed it."""
    alias_tokens: list[str] = []
    """Keyed hashes in place of the person's other identifiers that were searched for."""
    near_matches: int = 0
    """Number of similar spellings under which there were examples when the request was filed; they were not erased."""
    caseless: bool = False
    """Whether identifiers are compared without regard to upper and lower case."""
    unsearchable: list[str] = []
    """Models with examples that have no subject, and could not be searched."""
    toward: list[str] = []
    """Models whose regularizer draws the weights toward given numbers (`toward`) of unknown origin."""
    limits: list[str] = []
    """What the receipt does not cover."""
    recognised_until: str | None = None
    """Date until which Amend keeps a keyed hash that recognises the person's data if it returns."""
    sha256: str
    """Hash of the signed statement."""


class SpeltSubject(ResponseModel):
    """An identifier that was searched for."""

    subject: str
    """As the caller spells it."""
    token: str
    """Its keyed hash on the receipt."""


class SpeltReceiptResponse(ReceiptResponse):
    """A receipt together with the identifiers that were searched for."""

    searched: list[SpeltSubject]
