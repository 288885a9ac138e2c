"""Removals: remove examples by their ids, subjects, source or positions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Invalid
from core.jobs import queue
from core.ledger import queries
from core.ledger.removal_selections import remove_named, remove_source, remove_span
from core.ledger.removals import Removed
from core.ledger.subject_hashes import subject_hash
from core.models import catalog
from core.models.field_types import PLAIN, Strict
from core.tables.audit import Action
from core.tables.ledger import Example
from core.tables.models import Model
from service.context import ContextDep
from service.examples.readers import batch_too_large
from service.http.auth import Reader, Remover
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/removals", tags=["Removal of data"], route_class=AuthenticatedRoute)

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]


Position = Annotated[int, Field(strict=True, ge=1, lt=2**63)]


class NewRemoval(Strict):
    """Examples to remove: by their ids, all examples of these subjects or of a source, or those at a range of
    positions. Give exactly one of the four.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"ids": ["a1", "zz"]}]})

    # fail_fast: one error is enough; a million of them would be larger than the request
    ids: list[Text] | None = Field(None, min_length=1, fail_fast=True)
    subjects: list[Text] | None = Field(None, min_length=1, fail_fast=True)
    source: Text | None = Field(
        None, description="Removes all examples of this source, including quarantined and unlabelled ones."
    )
    positions: tuple[Position, Position] | None = Field(
        None,
        description="First and last position of a range: removes the examples that were added there, including"
        " quarantined ones. The response to `POST .../examples` has both positions.",
        examples=[[1001, 2000]],
    )

    @model_validator(mode="after")
    def one_of_four(self) -> NewRemoval:
        given = [self.ids, self.subjects, self.source, self.positions]
        if given.count(None) != len(given) - 1:
            raise ValueError("Give exactly one of `ids`, `subjects`, `source` and `positions`")
        if self.positions and self.positions[0] > self.positions[1]:
            raise ValueError("The first of the two `positions` must not be greater than the second")
        return self


class RemovedResponse(BaseModel):
    """Result of a removal. The examples are no longer part of any new training pass or listing."""

    id: str
    removed: int
    unknown: list[str] = Field(description="Ids, subjects or source that match no example of the model.")
    position: int = Field(description="Last ledger position of the removal; the head if it took no position.")
    job: str | None = Field(
        description="Id of the job that makes the model forget the examples. Null if no removed example was in force,"
        " if the model has no version, or if it is held: then `resume` starts the job."
    )


class RemovalResponse(BaseModel):
    """A removal. Unknown ids and subjects are counted but not stored."""

    id: str
    model: str
    removed: int
    unknown_count: int
    position: int
    job: str | None
    created_at: datetime


@router.post("", status_code=202, response_model=RemovedResponse, responses=problem_responses(404, 409, 413))
def remove_examples(name: Name, body: NewRemoval, caller: Remover, context: ContextDep, write: Write) -> Response:
    """Remove examples and make the model forget them."""
    names = body.ids or body.subjects or []
    if len(names) > context.settings.max_batch:
        raise batch_too_large(len(names), context.settings.max_batch, "ids" if body.ids else "subjects")
    for i, text in enumerate(names):
        if not text.isprintable():
            raise Invalid.at(("ids" if body.ids else "subjects", i), "request_invalid", "must be printable text")
    if body.source is not None and not body.source.isprintable():
        raise Invalid.at(("source",), "request_invalid", "must be printable text")

    def remove_by_name(session: Session, model: Model) -> Removed:
        if body.ids:
            return remove_named(session, model, Example.id, names, names)
        secret, caseless = context.settings.secret, context.settings.caseless_subjects
        hashes = [subject_hash(subject, secret, caseless) for subject in names]
        return remove_named(session, model, Example.subject, names, hashes)

    def remove(session: Session) -> RemovedResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        if body.source is not None:
            removed = remove_source(session, model, body.source)
        elif body.positions is not None:
            removed = remove_span(session, model, *body.positions)
        else:
            removed = remove_by_name(session, model)
        removal = removed.removal
        removal.job_id = queue.enqueue_adaptation(session, model, write.request_id) if removed.changed else None
        return RemovedResponse(
            id=removal.id,
            removed=removal.removed,
            unknown=removed.unknown,
            position=removal.position,
            job=removal.job_id,
        )

    return write(caller, 202, remove, Action.EXAMPLES_REMOVED, About(name))


@router.get("/{id}", response_model=RemovalResponse, responses=problem_responses(404))
def show_removal(
    name: Name, id: Annotated[str, PathParameter(max_length=36)], caller: Reader, context: ContextDep
) -> RemovalResponse:
    """Get a removal."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        removal = queries.find_removal(session, model, id)
        return RemovalResponse(
            id=removal.id,
            model=model.name,
            removed=removal.removed,
            unknown_count=removal.unknown,
            position=removal.position,
            job=removal.job_id,
            created_at=removal.created_at,
        )
