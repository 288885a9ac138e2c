"""Lookup and export of a subject's examples: the rights of access and portability (GDPR Art. 15 and 20).

The subject is sent in the body only, because URLs appear in logs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import HTMLResponse, Response, StreamingResponse

from core.audit.entries import About
from core.erasure import listings, subject_examples
from core.erasure.identifiers import token_of
from core.erasure.spellings import find_similar
from core.errors import Invalid
from core.ledger.layouts import Layout
from core.ledger.spec_history import layout_at
from core.ledger.subject_hashes import subject_hash
from core.models.field_types import PLAIN, Strict
from core.register import log
from core.tables.audit import Action
from core.tables.models import Model
from core.tables.register import RecordKind
from service.context import Context, ContextDep
from service.erasures.controller import sender_of
from service.erasures.schemas import SpellingResponse
from service.examples.endpoints import NUMBERS_PER_PAGE
from service.examples.schemas import ExampleResponse, of_example, of_pending, of_prediction
from service.http.auth import Eraser
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.parsing.inputs import inputs_of
from service.rights import access_report

router = APIRouter(prefix="/v1/subjects", tags=["Erasure"], route_class=AuthenticatedRoute)

NDJSON = "application/x-ndjson"


class SubjectQuery(Strict):
    """The subject that the request is about."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"subject": "user-7"}]})

    subject: Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]


class HoldingResponse(BaseModel):
    """A model that has examples of the subject."""

    model: str
    examples: int = Field(
        description="Number of different examples: active, restricted by a request, or removed but not yet deleted."
    )


class LookupResponse(BaseModel):
    """Models with examples of the subject, as far as the key can see them."""

    models: list[HoldingResponse]
    near_matches: list[SpellingResponse] = Field(
        description="Similar spellings (case, Unicode form, spaces) under which examples are stored. "
        "Empty if the key is limited to models."
    )


class ExportedExampleResponse(ExampleResponse):
    """One line of an export: an example of the subject."""

    subject: str
    """The subject as the request names it."""
    model: str
    in_force: bool
    """Whether the example is active. Otherwise it is removed and not deleted yet, or it has no label yet."""


class NdjsonResponse(StreamingResponse):
    media_type = NDJSON


def hash_subject(query: SubjectQuery, context: Context) -> bytes:
    if not query.subject.isprintable():
        raise Invalid.at(("subject",), "request_invalid", "must be printable text")
    return subject_hash(query.subject, context.settings.secret, context.settings.caseless_subjects)


@router.post("/lookup", response_model=LookupResponse, responses=problem_responses())
def look_up_subject(body: SubjectQuery, caller: Eraser, context: ContextDep, auditor: AuditorDep) -> LookupResponse:
    """Count the examples of a subject in each model."""
    with context.database.read() as session:
        found = subject_examples.models_of(session, hash_subject(body, context), caller.models)
        models = [HoldingResponse(model=model.name, examples=count) for model, count in found]
        similar = find_similar(session, [body.subject], context.settings)[1] if caller.models is None else []
    auditor.record_read(caller, Action.SUBJECT_LOOKED_UP, about(found))
    return LookupResponse(models=models, near_matches=[SpellingResponse(**asdict(one)) for one in similar])


def about(found: Sequence[tuple[Model, int]]) -> About:
    """The entry of the audit log: how much was found, but neither whose nor in which models."""
    counts = {"examples": sum(count for _, count in found), "models": len(found)}
    return About(counts=counts if found else {})


@router.post(
    "/export",
    response_class=NdjsonResponse,
    responses={
        200: {
            "description": "One line per example, or a page.",
            "model": ExportedExampleResponse,
            "content": {"text/html": {"schema": {"type": "string"}}},
        },
        **problem_responses(),
    },
)
def export_subject(
    body: SubjectQuery,
    caller: Eraser,
    context: ContextDep,
    auditor: AuditorDep,
    accept: Annotated[str, Header(description="`text/html` returns a report for people (GDPR Art. 15).")] = NDJSON,
) -> Response:
    """Export all examples of a subject as NDJSON, one object per line. Examples without a label have a null `y`, and
    the `prediction` that they got on arrival. With `Accept: text/html`, the response is a report for the person, which
    covers all models and lists the person's requests: it requires a key that is not limited to certain models.
    """
    subject, as_page = hash_subject(body, context), "text/html" in accept.lower()
    if as_page:
        caller.require_all_models()
    with context.database.write() as session:
        token, what = token_of(subject, context.settings.secret), "report" if as_page else "examples"
        log.record(session, RecordKind.EXPORTED, caller.key_id, subject_token=token, what=what)
    context.write_register_files()
    with context.database.read() as session:
        models = subject_examples.models_of(session, subject, caller.models)
        found = [(model.id, model.name, layout_at(session, model.id, model.head)) for model, _ in models]
    auditor.record_read(caller, Action.SUBJECT_EXPORTED, about(models))
    if as_page:
        return HTMLResponse(write_report(body.subject, subject, models, context))

    def lines() -> Iterator[bytes]:
        for model_id, name, layout in found:
            for example, in_force in read_model(context, subject, model_id, layout):
                shown = example.model_dump()
                line = ExportedExampleResponse(**shown, subject=body.subject, model=name, in_force=in_force)
                yield line.model_dump_json().encode() + b"\n"

    return NdjsonResponse(lines())


def write_report(name: str, subject: bytes, models: Sequence[tuple[Model, int]], context: Context) -> str:
    """The report for the person."""
    sections = []
    for model, count in models:
        with context.database.read() as session:
            layout = layout_at(session, model.id, model.head)
            first = min(subject_examples.positions_of(session, [subject], model.id), default=None)
            described = access_report.describe_section(session, model, layout.spec["target"], count, first)
        records = access_report.read_records(read_model(context, subject, model.id, layout))
        sections.append(access_report.ModelSection(**described, records=records))
    with context.database.read() as session:
        token = token_of(subject, context.settings.secret)
        requests = [access_report.describe_request(one) for one in listings.requests_of(session, [token])]
    return access_report.render(name, sections, requests, sender_of(context.settings))


def read_model(
    context: Context, subject: bytes, model_id: int, layout: Layout
) -> Iterator[tuple[ExampleResponse, bool]]:
    """The examples of one model, and whether each is active; page by page, since all images may not fit into memory."""
    limit, after = max(1, NUMBERS_PER_PAGE // inputs_of(layout.spec).width), 0
    while True:
        with context.database.read() as session:
            rows = subject_examples.examples_of(session, subject, model_id, after, limit)
            predicted = subject_examples.predictions_of(session, model_id, [row.position for row in rows])
        for row in rows:
            recorded = predicted.get(row.position)
            prediction = recorded and of_prediction(recorded.version, recorded.mean)
            yield of_example(row, layout).model_copy(update={"prediction": prediction}), row.removed is None
        if len(rows) < limit:
            break
        after = rows[-1].position
    last = ""
    while True:
        with context.database.read() as session:
            waiting = subject_examples.pending_of(session, subject, model_id, last, limit)
        for unlabelled in waiting:
            yield of_pending(unlabelled, layout), False
        if len(waiting) < limit:
            return
        last = waiting[-1].id
