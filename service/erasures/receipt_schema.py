"""The shape of a receipt, for the OpenAPI document. `core.erasure.receipt_content` writes it."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from core.erasure.evidence import Evidence
from core.erasure.receipt_content import ModelFacts, ReceiptFacts
from service.http.response_model import ResponseModel

DOCSTRINGS = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, kw_only=True)
class ReceiptModelResponse(Evidence, ModelFacts):
    """What was done in one model. Fields that do not apply to the method are left out."""

    __pydantic_config__: ClassVar[ConfigDict] = DOCSTRINGS
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
    disagreement: float | None = None
    """Fraction of predictions in which a full retrain differs from that version."""
    tolerance: float | None = None
    """Largest bound that the policy allows, relative to the length of the weights."""


@dataclass(frozen=True, kw_only=True)
class ReceiptResponse(ReceiptFacts):
    """Record of what was done for one erasure request. It does not identify the person."""

    __pydantic_config__: ClassVar[ConfigDict] = DOCSTRINGS
    # descriptions, not docstrings, because `SpeltReceiptResponse` extends it
    number: int
    erasure: Annotated[str, Field(description="Id of the erasure.")]
    models: list[ReceiptModelResponse]
    leaf: Annotated[int, Field(description="Index of its leaf in the register.")]
    key_id: Annotated[str, Field(description="Id of the key that signed it.")]
    sha256: Annotated[str, Field(description="Hash of the signed statement.")]


class SpeltSubject(ResponseModel):
    """An identifier that was searched for."""

    subject: str
    """As the caller spells it."""
    token: str
    """Its keyed hash on the receipt."""


@dataclass(frozen=True, kw_only=True)
class SpeltReceiptResponse(ReceiptResponse):
    """A receipt together with the identifiers that were searched for."""

    searched: list[SpeltSubject]
