"""Decisions about quarantined examples of people whose data was erased.

Those of a rejected version are decided with the version (`POST .../versions/{n}/accept` and `discard`).
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.lifecycle import quarantine_decisions
from core.lifecycle.quarantine_decisions import Decision
from core.models import catalog
from core.models.field_types import PLAIN, Strict
from core.tables.audit import Action
from core.tables.models import Model
from service.context import ContextDep
from service.examples.readers import batch_too_large
from service.http.auth import Admin, Caller
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/returned", tags=["Examples"], route_class=AuthenticatedRoute)


class ChosenExamples(Strict):
    """The quarantined examples that a decision is about."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": None}]})

    ids: list[Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]] | None = Field(
        None,
        min_length=1,
        fail_fast=True,
        description="Ids of the examples. Null: all quarantined examples of the model.",
    )


class ReturnedDecisionResponse(BaseModel):
    """Result of a decision about examples of returning people."""

    examples: int = Field(description="Number of examples that were put into force, or removed.")
    job: str | None = Field(description="Id of the job that adapts the model; null if nothing has to be adapted.")


@router.post("/accept", response_model=ReturnedDecisionResponse, responses=problem_responses(404, 409, 413))
def accept_returned(name: Name, body: ChosenExamples, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Accept quarantined examples about people whose data was erased: put them into force, and no longer quarantine new
    examples about the same people. Examples of a person with an open erasure request stay in quarantine.
    """

    def act(session: Session, model: Model) -> Decision:
        return quarantine_decisions.accept_returned(session, model, body.ids, write.request_id)

    return carry_out(name, body.ids, context.settings.max_batch, caller, write, act, Action.RETURNED_ACCEPTED)


@router.post("/discard", response_model=ReturnedDecisionResponse, responses=problem_responses(404, 409, 413))
def discard_returned(name: Name, body: ChosenExamples, caller: Admin, context: ContextDep, write: Write) -> Response:
    """Discard quarantined examples about people whose data was erased. They are deleted soon after."""

    def act(session: Session, model: Model) -> Decision:
        return quarantine_decisions.discard_returned(session, model, body.ids)

    return carry_out(name, body.ids, context.settings.max_batch, caller, write, act, Action.RETURNED_DISCARDED)


def carry_out(
    name: str,
    ids: Sequence[str] | None,
    max_batch: int,
    caller: Caller,
    write: UnitOfWork,
    act: Callable[[Session, Model], Decision],
    action: Action,
) -> Response:
    """Carry out a decision in one transaction."""
    if ids is not None and len(ids) > max_batch:
        raise batch_too_large(len(ids), max_batch, "ids")

    def respond(session: Session) -> ReturnedDecisionResponse:
        return ReturnedDecisionResponse(**vars(act(session, catalog.find(session, name, caller.models, lock=True))))

    return write(caller, 200, respond, action, About(name))
