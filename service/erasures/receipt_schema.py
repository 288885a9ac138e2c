"""What a receipt looks like, for its readers: made by `core.erasure.report`, answered as it is stored."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from core.erasure.report import FILES
from core.tables.erasures import EventKind


class FamiliarityAnswer(BaseModel):
    """How well the person's examples can be told from never-seen ones by their losses; 0.5: not at all."""

    before: float
    after: float


class DeletedAnswer(BaseModel):
    """How much was deleted."""

    examples: int | None = None
    files: int | None = Field(None, alias=FILES)
    versions: int | None = None


class StayAnswer(BaseModel):
    """Versions that stay, and why."""

    versions: list[int]
    why: str


class VersionFatesAnswer(BaseModel):
    """Which versions had to go for the person, and which stay."""

    purged: list[int]
    stay: list[StayAnswer]


class ReceiptModelAnswer(BaseModel):
    """What was done in one model. What was not done, or cannot be with the method, is left out."""

    model: str
    examples: int
    method: str | None = Field(None, description='"adapted", "retrained", "withdrawn", "unknown" or "deleted".')
    words: str | None = Field(None, description="How the model forgot, for people.")
    version: int | None = Field(None, description="The version without the person.")
    sha256: str | None = Field(None, description="Of its file.")
    certificate: dict[str, Any] | None = Field(None, description="As that of the version.")
    disagreement: float | None = Field(None, description="Share of predictions in which a full retrain differs.")
    tolerance: float | None = Field(None, description="Of the bound, relative to the length of the weights.")
    audit: FamiliarityAnswer | None = None
    deleted: DeletedAnswer | None = None
    versions: VersionFatesAnswer | None = None
    checked: dict[str, int] | None = Field(None, description="What was looked for in the end: how much was left.")
    database: str | None = None
    caches: str | None = None
    kept_until: str | None = Field(None, description="When the last version that knew the person is purged.")


class StepAnswer(BaseModel):
    """What somebody did about the request."""

    what: EventKind
    by: str = Field(description="The id of the key.")
    at: str


class ReceiptAnswer(BaseModel):
    """What was done for one person, without a word about who that is."""

    number: int
    erasure: str
    subject_token: str = Field(description="A keyed hash in place of the person.")
    received_at: str
    due_at: str
    extended: bool
    late: bool
    completed_at: str
    trail: list[StepAnswer]
    found: int = Field(description="Examples.")
    statement: str
    models: list[ReceiptModelAnswer]
    previous: str = Field(description="The hash of the receipt before this one.")
    sha256: str
