"""Removal of data: by the examples' ids or by the subjects they are about."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy.orm import InstrumentedAttribute, Session
from starlette.responses import Response

from core import ledger
from core.erasure.restrictions import lift_restrictions
from core.errors import Invalid
from core.jobs import queue
from core.ledger import queries
from core.ledger.batch import subject_hash
from core.models import catalog
from core.models.fields import PLAIN, Strict
from core.tables.ledger import Example
from service.context import ContextDep
from service.examples.reader import batch_too_large
from service.http.auth import AuthenticatedRoute, Reader, Remover
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/removals", tags=["Removal of data"], route_class=AuthenticatedRoute)

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]


class NewRemoval(Strict):
    """Which examples shall go: those with these ids, or all about these subjects."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": ["a1", "zz"]}]})

    # one complaint will do: those about a million names would be larger than all else
    ids: list[Text] | None = Field(None, min_length=1, fail_fast=True)
    subjects: list[Text] | None = Field(None, min_length=1, fail_fast=True)

    @model_validator(mode="after")
    def one_of_both(self) -> NewRemoval:
        if (self.ids is None) == (self.subjects is None):
            raise ValueError("give either ids or subjects")
        return self


class RemovedAnswer(BaseModel):
    """What came of a removal. From now on the examples are in no new training pass and no listing."""

    id: str
    removed: int
    unknown: list[str] = Field(description="Ids or subjects that no example in force has.")
    position: int = Field(description="The last position that the removal took; the head if it took none.")
    job: str | None = Field(
        description="Makes the model forget them. Null while there is no version to adapt, and while the model is held:"
        " `resume` has it done."
    )


class RemovalAnswer(BaseModel):
    """A removal. Unknown names are counted, not kept."""

    id: str
    model: str
    removed: int
    unknown_count: int
    position: int
    job: str | None
    created_at: datetime


@router.post("", status_code=202, response_model=RemovedAnswer, responses=problem_responses(404, 409, 413))
def remove_examples(name: Name, body: NewRemoval, caller: Remover, context: ContextDep, write: Write) -> Response:
    """Remove examples, and have the model forget them."""
    names = body.ids or body.subjects or []
    if len(names) > context.settings.max_batch:
        raise batch_too_large(len(names), context.settings.max_batch, "ids" if body.ids else "subjects")
    for i, text in enumerate(names):
        if not text.isprintable():
            raise Invalid.at(("ids" if body.ids else "subjects", i), "request_invalid", "must be printable text")

    def remove(session: Session) -> RemovedAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        column: InstrumentedAttribute[Any] = Example.id if body.ids else Example.subject
        stored = list[Any](names)
        if body.subjects:
            secret, caseless = context.settings.secret, context.settings.caseless_subjects
            stored = [subject_hash(subject, secret, caseless) for subject in names]
        held = lift_restrictions(session, model, column, stored)
        removed = ledger.remove(session, model, column, names, stored)
        known = {name for name, value in zip(names, stored, strict=True) if value in held}
        removal, unknown = removed.removal, [name for name in removed.unknown if name not in known]
        removal.job_id = queue.enqueue_adaptation(session, model, write.request_id) if removal.removed else None
        return RemovedAnswer(
            id=removal.id, removed=removal.removed, unknown=unknown, position=removal.position, job=removal.job_id
        )

    return write(caller.credential, 202, remove)


@router.get("/{id}", response_model=RemovalAnswer, responses=problem_responses(404))
def show_removal(
    name: Name, id: Annotated[str, PathParameter(max_length=36)], caller: Reader, context: ContextDep
) -> RemovalAnswer:
    """One removal."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        removal = queries.find_removal(session, model, id)
        return RemovalAnswer(
            id=removal.id,
            model=model.name,
            removed=removal.removed,
            unknown_count=removal.unknown,
            position=removal.position,
            job=removal.job_id,
            created_at=removal.created_at,
        )
