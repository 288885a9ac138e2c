"""Request and response bodies about erasures."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from core.erasure import report
from core.models.fields import PLAIN, Moment, Strict
from core.tables.documents import JobError
from core.tables.erasures import Erasure, ErasureState, Event, EventKind, Part
from service.http.response_model import ResponseModel

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
Reason = Annotated[str, Field(min_length=1, max_length=500, pattern=PLAIN)]


class NewErasure(Strict):
    """A request to erase one person's data. The subject is stored as a keyed hash until the erasure ends."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Text
    reason: Reason | None = Field(None, description="A note for your own records; deleted when the erasure ends.")
    received_at: Moment | None = Field(
        None,
        description="Time when the person made the request, if that was earlier; UTC if it has no time zone.",
        ge=datetime(1970, 1, 1, tzinfo=UTC),
    )
    hold: bool | None = Field(
        None,
        description="Only take the examples out of force until the request is approved or refused. "
        "Default: the setting AMEND_ERASURE_HOLD.",
    )


class NewErasures(Strict):
    """Several erasure requests, one for each person."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"requests": [{"subject": "user-7"}, {"subject": "b"}]}]})

    requests: list[NewErasure] = Field(min_length=1)


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

    action: EventKind
    by: str
    """Id of the API key that was used."""
    at: datetime


class ErasureResponse(ResponseModel):
    """An erasure request and its progress."""

    id: str
    state: ErasureState
    received_at: datetime
    due_at: datetime
    overdue: bool
    """Whether the request is still open after its due date."""
    completed_at: datetime | None
    """Null while the request is open, and if it was refused."""
    late: bool
    """Whether the request was completed or refused after its due date."""
    extension: str | None
    """Reason for the extension of the due date."""
    refusal: str | None
    """Reason for the refusal."""
    trail: list[EventResponse]
    """Actions on the request, in order."""
    models: list[PartResponse]
    receipt: str | None
    """Path of the receipt; null until the erasure is completed."""


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
    """Number of examples of the person, which are active again."""
    rights: str
    """The person's rights to complain to an authority and to go to court."""


class RetriedResponse(ResponseModel):
    """Failed erasures that were enqueued again."""

    retried: list[str]
    """Ids of the erasures."""


class FlawResponse(ResponseModel):
    """A problem with one receipt."""

    number: int
    """Number of the receipt."""
    problem: str


class ChainResponse(ResponseModel):
    """Result of verifying the hash chain of the receipts."""

    valid: bool
    receipts: int
    """Number of receipts that were verified."""
    last: str | None
    """Hash of the last receipt. Keep a copy elsewhere: it reveals if the whole chain was replaced."""
    flaws: list[FlawResponse]


class ReplayedResponse(ResponseModel):
    """Result of replaying receipts in a database that was restored from a backup."""

    receipts: int
    """Number of receipts that the store contained and the database lacked."""
    erasures: list[str]
    """Ids of the erasures that are carried out again."""


def describe(erasure: Erasure, parts: list[Part], events: list[Event], moment: datetime) -> ErasureResponse:
    values: dict[str, Any] = {
        name: getattr(erasure, name)
        for name in ("id", "state", "received_at", "due_at", "late", "extension", "refusal")
    }
    return ErasureResponse(
        **values,
        completed_at=None if erasure.state is ErasureState.REFUSED else erasure.completed_at,
        overdue=erasure.is_overdue(moment),
        trail=[EventResponse(action=event.kind, by=event.by, at=event.at) for event in events],
        models=[describe_part(part) for part in parts],
        receipt=f"/v1/erasures/{erasure.id}/receipt" if erasure.receipt else None,
    )


def refusal_of(erasure: Erasure, parts: list[Part], rights: str) -> RefusalResponse:
    assert erasure.completed_at is not None
    return RefusalResponse(
        erasure=erasure.id,
        received_at=erasure.received_at,
        refused_at=erasure.completed_at,
        late=erasure.late,
        reason=erasure.refusal or "",
        examples=sum(len(part.restricted) for part in parts),
        rights=rights,
    )


def describe_part(part: Part) -> PartResponse:
    outcome = report.read(part).outcome
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
