"""Requests and answers about erasures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from core.erasure import report
from core.models.fields import PLAIN, Moment, Strict
from core.tables.erasures import Erasure, ErasureState, Event, EventKind, Part

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
Reason = Annotated[str, Field(min_length=1, max_length=500, pattern=PLAIN)]


class NewErasure(Strict):
    """Who shall be forgotten. The subject is stored as a keyed hash only, and not at all once it is done."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Text
    reason: Reason | None = Field(None, description="For your own records; deleted when the erasure ends.")
    received_at: Moment | None = Field(
        None,
        description="When the person asked, if that was earlier; UTC where it has no time zone.",
        ge=datetime(1970, 1, 1, tzinfo=UTC),
    )
    hold: bool | None = Field(
        None,
        description="Only take the examples out of force, until somebody approves or refuses the request. "
        "Default: the setting AMEND_ERASURE_HOLD.",
    )


class NewErasures(Strict):
    """Several people who shall be forgotten, each as in a request of its own."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"requests": [{"subject": "user-7"}, {"subject": "b"}]}]})

    requests: list[NewErasure] = Field(min_length=1)


class GivenReason(Strict):
    """Why."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "required by law for another year"}]})

    reason: Reason


class ErasureError(BaseModel):
    """Why a model has not forgotten the person yet."""

    code: str
    detail: str


class PartAnswer(BaseModel):
    """What the erasure means for one model."""

    model: str
    examples: int
    state: ErasureState
    version: int | None = Field(description="The version without the person that was promoted.")
    bound: float | None = Field(description="Covers the distance of its weights to a retrain without the person.")
    method: str | None = Field(description='"adapted", "retrained" or "withdrawn".')
    error: ErasureError | None


class EventAnswer(BaseModel):
    """Something that was done about the request."""

    what: EventKind
    by: str = Field(description="The id of the key.")
    at: datetime


class ErasureAnswer(BaseModel):
    """A request to be forgotten, and where it stands."""

    id: str
    state: ErasureState
    received_at: datetime
    due_at: datetime
    overdue: bool
    completed_at: datetime | None = Field(description="Null for one that was refused: nothing was erased.")
    late: bool = Field(description="Whether it ended after it was due.")
    extension: str | None = Field(description="Why the due date was moved.")
    refusal: str | None = Field(description="Why it was refused.")
    trail: list[EventAnswer] = Field(description="Who did what about it, and when.")
    models: list[PartAnswer]
    receipt: str | None


class ErasuresAnswer(BaseModel):
    """Requests, in the order they were filed; one person named twice has one."""

    items: list[ErasureAnswer]


class RefusalAnswer(BaseModel):
    """What a person must be told whose request was refused."""

    erasure: str
    received_at: datetime
    refused_at: datetime
    late: bool = Field(description="Whether that was after the due date.")
    reason: str
    examples: int = Field(description="About the person; they are in force again.")
    rights: str = Field(description="To complain, and to go to court.")


class RetriedAnswer(BaseModel):
    """Erasures that are tried again."""

    retried: list[str]


class FlawAnswer(BaseModel):
    number: int
    problem: str


class ChainAnswer(BaseModel):
    """Whether all receipts are there as they were made."""

    valid: bool
    receipts: int
    last: str | None = Field(
        description="The hash of the last receipt: keep it elsewhere, and a chain made anew shows."
    )
    flaws: list[FlawAnswer]


class ReplayedAnswer(BaseModel):
    """What a restored database has to do again."""

    receipts: int = Field(description="Receipts that the store has and the database had not.")
    erasures: list[str] = Field(description="Erasures that are carried out again.")


def describe(erasure: Erasure, parts: list[Part], events: list[Event], moment: datetime) -> ErasureAnswer:
    values: dict[str, Any] = {
        name: getattr(erasure, name)
        for name in ("id", "state", "received_at", "due_at", "late", "extension", "refusal")
    }
    return ErasureAnswer(
        **values,
        completed_at=None if erasure.state is ErasureState.REFUSED else erasure.completed_at,
        overdue=erasure.is_overdue(moment),
        trail=[EventAnswer(what=event.kind, by=event.by, at=event.at) for event in events],
        models=[describe_part(part) for part in parts],
        receipt=f"/v1/erasures/{erasure.id}/receipt" if erasure.receipt else None,
    )


def refusal_of(erasure: Erasure, parts: list[Part], rights: str) -> RefusalAnswer:
    assert erasure.completed_at is not None
    return RefusalAnswer(
        erasure=erasure.id,
        received_at=erasure.received_at,
        refused_at=erasure.completed_at,
        late=erasure.late,
        reason=erasure.refusal or "",
        examples=sum(len(part.restricted) for part in parts),
        rights=rights,
    )


def describe_part(part: Part) -> PartAnswer:
    outcome = report.read(part).outcome
    certificate = (outcome.certificate if outcome else None) or {}
    return PartAnswer(
        model=part.model,
        examples=part.examples,
        state=part.state,
        version=part.version,
        bound=certificate.get("bound"),
        method=outcome.method if outcome else None,
        error=ErasureError(**part.error) if part.error else None,
    )
