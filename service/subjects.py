"""What is stored about a person, for their right of access (GDPR Art. 15) and to take it with them (Art. 20).

The person is named in the body alone: addresses stand in logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from core.erasure import queries
from core.errors import Invalid
from core.ledger.batch import subject_hash
from core.ledger.layouts import Layout
from core.ledger.specs import layout_at
from core.models.fields import PLAIN, Strict
from service.context import Context, ContextDep
from service.examples.endpoints import NUMBERS_PER_PAGE
from service.examples.schemas import ExampleAnswer, of_example
from service.http.auth import AuthenticatedRoute, Eraser
from service.http.problems import problem_responses
from service.parsing.inputs import inputs_of

router = APIRouter(prefix="/v1/subjects", tags=["Erasure"], route_class=AuthenticatedRoute)

NDJSON = "application/x-ndjson"


class Person(Strict):
    """Whom it is about."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]


class HoldingAnswer(BaseModel):
    """A model that has examples about the person."""

    model: str
    examples: int = Field(description="In force, held back by a request, or removed and not deleted yet.")


class LookupAnswer(BaseModel):
    """Where the person is known; only models that the key can see."""

    models: list[HoldingAnswer]


class ExportedExample(ExampleAnswer):
    """One line of an export."""

    model: str
    in_force: bool


def hash_person(person: Person, context: Context) -> bytes:
    if not person.subject.isprintable():
        raise Invalid.at(("subject",), "request_invalid", "must be printable text")
    return subject_hash(person.subject, context.settings.secret, context.settings.caseless_subjects)


@router.post("/lookup", response_model=LookupAnswer, responses=problem_responses())
def look_up_subject(body: Person, caller: Eraser, context: ContextDep) -> LookupAnswer:
    """Which models have how many examples about a person."""
    with context.database.read() as session:
        found = queries.models_of(session, hash_person(body, context), caller.models)
        return LookupAnswer(models=[HoldingAnswer(model=model.name, examples=count) for model, count in found])


@router.post(
    "/export",
    response_class=Response,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}, **problem_responses()},
)
def export_subject(body: Person, caller: Eraser, context: ContextDep) -> StreamingResponse:
    """All examples about a person, as NDJSON: `{"model", "id", "x", "y", "weight", "split", "position",
    "in_force"}` a line.
    """
    subject = hash_person(body, context)
    with context.database.read() as session:
        models = [model for model, _ in queries.models_of(session, subject, caller.models)]
        found = [(model.id, model.name, layout_at(session, model.id, model.head)) for model in models]

    def lines() -> Iterator[bytes]:
        for model_id, name, layout in found:
            yield from export_model(context, subject, model_id, name, layout)

    return StreamingResponse(lines(), media_type=NDJSON)


def export_model(context: Context, subject: bytes, model_id: int, name: str, layout: Layout) -> Iterator[bytes]:
    """A model's lines, read a page at a time: nobody's memory must hold all images of a person."""
    limit, after = max(1, NUMBERS_PER_PAGE // inputs_of(layout.spec).width), 0
    while True:
        with context.database.read() as session:
            rows = queries.examples_of(session, subject, model_id, after, limit)
        for row in rows:
            example = of_example(row, layout).model_dump()
            line = ExportedExample(**example, model=name, in_force=row.removed is None)
            yield line.model_dump_json().encode() + b"\n"
        if len(rows) < limit:
            return
        after = rows[-1].position
