"""Request and response bodies about erasures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from core.erasure import receipt_content
from core.erasure.queries import reference_in, trail_entry
from core.erasure.receipt_text import describe_return
from core.models.field_types import PLAIN, Moment, Strict
from core.register.records import Acknowledgement
from core.tables.documents import JobError
from core.tables.erasures import UNDONE, Erasure, ErasureState, Part
from core.tables.register import RecordKind
from service.http.response_model import ResponseModel

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
MAX_ALIASES = 20
"""Maximum number of identifiers of one person."""
Reason = Annotated[str, Field(min_length=1, max_length=500, pattern=PLAIN)]
ReceivedAt = Annotated[
    Moment | None,
    Field(
        description="Time when the person made the request, if that was earlier; UTC if it has no time zone.",
        ge=datetime(1970, 1, 1, tzinfo=UTC),
    ),
]
Reference = Annotated[
    Text | None,
    Field(description="Your own number for the request. The register keeps it as long as its records."),
]


class NewErasure(Strict):
    """A request to erase one person's data. Identifiers are stored as keyed hashes until the erasure ends."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Text | None = Field(None, description="Identifier of the person, as in the examples' `subject`.")
    subjects: list[Text] = Field(
        [], max_length=MAX_ALIASES, description="All identifiers of this one person. Together with `subject`, or alone."
    )
    reason: Reason | None = Field(None, description="A note for your own records; deleted when the erasure ends.")
    received_at: ReceivedAt = None
    reference: Reference = None
    hold: bool | None = Field(
        None,
        description="Only take the examples out of force until the request is approved or refused. "
        "Default: the setting AMEND_ERASURE_HOLD.",
    )

    @model_validator(mode="after")
    def require_subject(self) -> Self:
        if not self.identifiers:
            raise ValueError("Give `subject`, `subjects` or both")
        return self

    @property
    def identifiers(self) -> list[str]:
        """All identifiers as given, each once."""
        given = [] if self.subject is None else [self.subject]
        return list(dict.fromkeys((*given, *self.subjects)))


class NewErasures(Strict):
    """Several erasure requests, one for each person."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"requests": [{"subject": "user-7"}, {"subject": "b"}]}]})

    requests: list[NewErasure] = Field(min_length=1)


class SpeltSubjects(Strict):
    """Identifiers of the person of a receipt, spelt as in the request."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subjects": ["user-7"]}]})

    subjects: list[Text] = Field(min_length=1, max_length=MAX_ALIASES)


class GivenReason(Strict):
    """The reason for a decision."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "required by law for another year"}]})

    reason: Reason


class PartResponse(ResponseModel):
    """Progress of an erasure in one model."""

    model: str
    examples: int
    """Number of the person's examples in this model."""
    state: ErasureState
    version: int | None
    """The promoted version that does not depend on the person's examples."""
    bound: float | None
    """Upper bound on the distance of its weights to those of a retrain without the person's examples."""
    method: str | None
    """`adapted`, `retrained` or `withdrawn`."""
    error: JobError | None
    """Why the erasure failed in this model."""


class EventResponse(ResponseModel):
    """An action on the request."""

    action: RecordKind
    by: str
    """Id of the API key that was used; `amend` for actions of Amend itself."""
    name: str | None
    """Name of the API key."""
    at: datetime


class SpellingResponse(ResponseModel):
    """A spelling of an identifier."""

    subject: str
    examples: int
    """Number of examples stored under this spelling, in all models."""


class ErasureResponse(ResponseModel):
    """An erasure request and its progress."""

    id: str
    state: ErasureState
    received_at: datetime
    due_at: datetime
    overdue: bool
    """Whether the request is still open after its due date."""
    completed_at: datetime | None
    """Null while the request is open, and if it was refused or withdrawn."""
    late: bool
    """Whether the request ended after its due date."""
    reason: str | None
    """The note that was given with the request; null once the request has ended."""
    reference: str | None
    """Your own number for the request; null after the retention period of the register."""
    extension: str | None
    """Reason for the extension of the due date."""
    refusal: str | None
    """Reason for the refusal."""
    trail: list[EventResponse]
    """Actions on the request, in order, as in the register. Records that have expired are left out."""
    models: list[PartResponse]
    receipt: str | None
    """Path of the receipt; null until the erasure is completed."""
    repeats: str | None
    """Id of the completed erasure that this one repeats, because a backup from before it was restored."""
    tokens: list[str]
    """Keyed hashes of the identifiers that are searched for, as on the receipt; the first identifier first."""
    searched: list[SpellingResponse] | None = None
    """Only in the response to a new request: the identifiers, exactly as the request spells them. Amend stores only
    hashes of them."""
    near_matches: list[SpellingResponse] | None = None
    """Only in the response to a new request: similar spellings (case, Unicode form, spaces) under which examples are
    stored, and which the request does not include. File the request again with those that belong to the person."""
    acknowledgement: Acknowledgement | None = None
    """Only in the response to a new request: proof that the signed register contains it. Keep it, or give it to the
    person: nobody can deny the request later."""


class ErasuresResponse(ResponseModel):
    """Erasure requests in the order of the subjects given. A subject that is given twice has one request."""

    items: list[ErasureResponse]


class RefusalResponse(ResponseModel):
    """What to tell a person whose request was refused."""

    erasure: str
    """Id of the erasure."""
    received_at: datetime
    refused_at: datetime
    late: bool
    """Whether the request was refused after its due date."""
    reason: str
    examples: int
    """Number of examples of the person that are active again."""
    in_use: list[str]
    """Models whose version in use had been trained on these examples when the request was filed."""
    outcome: str
    """What happened to the examples, in words for the person; empty if nothing happened to them."""
    rights: str
    """The person's rights to complain to an authority and to go to court."""


class RetriedResponse(ResponseModel):
    """Failed erasures that were enqueued again."""

    retried: list[str]
    """Ids of the erasures."""


class ReplayedResponse(ResponseModel):
    """What was repeated in a database that was restored from a backup."""

    receipts: int
    """Number of receipts that the store contained and the database lacked."""
    erasures: list[str]
    """Ids of the erasures that are carried out again."""
    requests: list[str]
    """Ids of the requests that were restored, or whose decisions were repeated."""
    removals: int
    """Number of examples that were removed again."""
    corrections: int
    """Number of examples that were corrected again."""
    outdated: int
    """Number of examples that were removed because their correction could not be repeated. Send them again."""
    models: list[str]
    """Names of the models that were deleted again."""
    strays: list[str]
    """Names of files in the store that Amend did not write, and that were ignored."""


def describe(
    erasure: Erasure, parts: list[Part], records: Sequence[Mapping[str, Any]], tokens: list[str], moment: datetime
) -> ErasureResponse:
    """The response for an erasure with its parts and its records in the register."""
    values: dict[str, Any] = {
        name: getattr(erasure, name)
        for name in ("id", "state", "received_at", "due_at", "late", "reason", "extension", "refusal", "repeats")
    }
    return ErasureResponse(
        **values,
        reference=reference_in(records),
        completed_at=None if erasure.state in UNDONE else erasure.completed_at,
        overdue=erasure.is_overdue(moment),
        trail=read_trail(records),
        models=[describe_part(part) for part in parts],
        receipt=f"/v1/erasures/{erasure.id}/receipt" if erasure.receipt else None,
        tokens=tokens,
    )


def read_trail(records: Sequence[Mapping[str, Any]]) -> list[EventResponse]:
    return [EventResponse.model_validate(asdict(trail_entry(record))) for record in records]


def refusal_of(erasure: Erasure, parts: list[Part], rights: str) -> RefusalResponse:
    assert erasure.completed_at is not None
    returned = sum(len(part.restricted) for part in parts)
    in_use = [part.model for part in parts if part.restricted and receipt_content.read(part).was_in_use]
    return RefusalResponse(
        erasure=erasure.id,
        received_at=erasure.received_at,
        refused_at=erasure.completed_at,
        late=erasure.late,
        reason=erasure.refusal or "",
        examples=returned,
        in_use=in_use,
        outcome=describe_return(sum(part.examples for part in parts), returned, in_use),
        rights=rights,
    )


def describe_part(part: Part) -> PartResponse:
    outcome = receipt_content.read(part).outcome
    certificate = outcome.certificate if outcome else None
    return PartResponse(
        model=part.model,
        examples=part.examples,
        state=part.state,
        version=part.version,
        bound=certificate.bound if certificate else None,
        method=outcome.method if outcome else None,
        error=part.error,
    )
