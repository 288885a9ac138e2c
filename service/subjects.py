"""Lookup and export of a subject's examples: the rights of access and portability (GDPR Art. 15 and 20).

The subject is sent in the body only, because URLs appear in logs.
"""

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
from service.examples.schemas import ExampleResponse, of_example, of_pending, of_prediction
from service.http.auth import Eraser
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.parsing.inputs import inputs_of

router = APIRouter(prefix="/v1/subjects", tags=["Erasure"], route_class=AuthenticatedRoute)

NDJSON = "application/x-ndjson"


class SubjectQuery(Strict):
    """The subject that the request is about."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]


class HoldingResponse(BaseModel):
    """A model that has examples of the subject."""

    model: str
    examples: int = Field(description="Active, restricted by a request, or removed but not yet deleted.")


class LookupResponse(BaseModel):
    """Models with examples of the subject, as far as the key can see them."""

    models: list[HoldingResponse]


class ExportedExample(ExampleResponse):
    """One line of an export."""

    model: str
    in_force: bool


def hash_subject(query: SubjectQuery, context: Context) -> bytes:
    if not query.subject.isprintable():
        raise Invalid.at(("subject",), "request_invalid", "must be printable text")
    return subject_hash(query.subject, context.settings.secret, context.settings.caseless_subjects)


@router.post("/lookup", response_model=LookupResponse, responses=problem_responses())
def look_up_subject(body: SubjectQuery, caller: Eraser, context: ContextDep) -> LookupResponse:
    """Count the examples of a subject in each model."""
    with context.database.read() as session:
        found = queries.models_of(session, hash_subject(body, context), caller.models)
        return LookupResponse(models=[HoldingResponse(model=model.name, examples=count) for model, count in found])


@router.post(
    "/export",
    response_class=Response,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}}, **problem_responses()},
)
def export_subject(body: SubjectQuery, caller: Eraser, context: ContextDep) -> StreamingResponse:
    """Export all examples of a subject as NDJSON, one line
    `{"model", "id", "x", "y", "weight", "split", "position", "in_force"}` per example. Examples without a label have
    a null `y`, and the `prediction` that they got on arrival.
    """
    subject = hash_subject(body, context)
    with context.database.read() as session:
        models = [model for model, _ in queries.models_of(session, subject, caller.models)]
        found = [(model.id, model.name, layout_at(session, model.id, model.head)) for model in models]

    def lines() -> Iterator[bytes]:
        for model_id, name, layout in found:
            yield from export_model(context, subject, model_id, name, layout)

    return StreamingResponse(lines(), media_type=NDJSON)


def export_model(context: Context, subject: bytes, model_id: int, name: str, layout: Layout) -> Iterator[bytes]:
    """The lines of one model, read page by page, so that memory need not hold all images of a subject."""
    limit, after = max(1, NUMBERS_PER_PAGE // inputs_of(layout.spec).width), 0
    while True:
        with context.database.read() as session:
            rows = queries.examples_of(session, subject, model_id, after, limit)
            predicted = queries.predictions_of(session, model_id, [row.position for row in rows])
        for row in rows:
            prediction = predicted.get(row.position)
            example = of_example(row, layout).model_dump()
            example["prediction"] = prediction and of_prediction(prediction.version, prediction.mean)
            yield line_of(ExportedExample(**example, model=name, in_force=row.removed is None))
        if len(rows) < limit:
            break
        after = rows[-1].position
    last = ""
    while True:
        with context.database.read() as session:
            waiting = queries.pending_of(session, subject, model_id, last, limit)
        for unlabelled in waiting:
            example = of_pending(unlabelled, layout).model_dump()
            yield line_of(ExportedExample(**example, model=name, in_force=False))
        if len(waiting) < limit:
            return
        last = waiting[-1].id


def line_of(example: ExportedExample) -> bytes:
    return example.model_dump_json().encode() + b"\n"
