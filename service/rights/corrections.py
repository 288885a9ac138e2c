"""Correction of an example about a person (GDPR Art. 16), with a record in the register."""

import json
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import ledger
from core.audit.entries import About
from core.erasure import subject_examples
from core.erasure.identifiers import owners_of, subjects_of, token_of
from core.erasure.requests import restrict
from core.errors import Invalid, NotFound
from core.jobs import queue
from core.ledger.spec_history import layout_at
from core.models import catalog
from core.models.field_types import PLAIN
from core.register import log
from core.tables.audit import Action
from core.tables.erasures import OPEN, Erasure, Part
from core.tables.models import Model
from core.tables.register import RecordKind
from service import prometheus_counters
from service.context import CachedModel, ContextDep
from service.erasures.schemas import Reference, Text
from service.examples.endpoints import read_body, with_cached_model
from service.examples.formats import JSON
from service.examples.readers import FIELD
from service.examples.schemas import ReplacedResponse, of_example
from service.http.auth import Eraser
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.parsing.json_items import errors_of_one
from service.subjects import SubjectQuery, hash_subject

router = APIRouter(prefix="/v1/subjects", tags=["Erasure"], route_class=AuthenticatedRoute)


class Correction(SubjectQuery):
    """The correct content of an example about a person."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"subject": "user-7", "model": "churn", "id": "a7", "x": [0.4, 0.2, 0.3]}]}
    )

    model: Annotated[str, Field(min_length=1, max_length=63, pattern=PLAIN)]
    id: Text = Field(description="Id of the example.")
    x: Any = Field(None, description="New input; of a table, only the columns to change. Default: as it was.")
    y: bool | int | float | str | list[bool | int | str] | None = Field(
        None, description="New label. Default: as it was."
    )
    reference: Reference = None


@router.post("/correct", status_code=202, response_model=ReplacedResponse, responses=problem_responses(404, 409))
def correct_subject(body: Correction, caller: Eraser, context: ContextDep, write: Write) -> Response:
    """Correct an example about a subject, and adapt the model. An example of a restricted person stays restricted.

    The example must be about the subject. Subject, split, weight, time and source stay as they are.
    """
    subject = hash_subject(body, context)
    if body.x is None and body.y is None:
        raise Invalid.at(("x",), "request_invalid", "give the new input, the new label or both")

    def act(cached: CachedModel) -> Response:
        def correct(session: Session) -> ReplacedResponse:
            model = catalog.find(session, body.model, caller.models, lock=True)
            if model.id != cached.id:
                raise NotFound("model_not_found", "The model does not exist.")
            restriction = put_in_force(session, model, subject, body.id)
            content = json.dumps(complete(session, model, body)).encode()
            with errors_of_one(FIELD):
                batch = read_body(cached, context, JSON, content, body.id)
            replaced = ledger.replace_examples(session, model, batch, context.screen)
            if restriction is not None:
                restrict(session, restriction, model, subjects_of(session, restriction))
            job = queue.enqueue_adaptation(session, model, write.request_id) if replaced.replaced else None
            prometheus_counters.EXAMPLES.labels("replaced").inc(replaced.replaced)
            token = token_of(subject, context.settings.secret)
            fields = {"subject_token": token, "model": model.name, "reference": body.reference}
            log.record(session, RecordKind.CORRECTED, caller.key_id, **fields)
            return ReplacedResponse(**vars(replaced), position=model.head, job=job)

        return write(caller, 202, correct, Action.SUBJECT_CORRECTED, About(body.model))

    return with_cached_model(body.model, caller, context, act)


def put_in_force(session: Session, model: Model, subject: bytes, id: str) -> Erasure | None:
    """Put a restricted example back in force to be corrected, and return its restriction; None if it is in force.

    Raises NotFound unless the person has an example with this id.
    """
    rows = subject_examples.examples_with_id(session, model.id, id, subject)
    if any(row.removed is None for row in rows):
        return None
    owner = owners_of(session, [subject], restriction=True).get(subject)
    erasure = owners_of(session, [subject]).get(subject)
    if erasure is not None and session.get_one(Erasure, erasure).state in OPEN:
        owner = None  # a job is deleting the example, and would not find the corrected one
    restriction = None if owner is None else session.get_one(Erasure, owner)
    part = None if owner is None else session.get(Part, (owner, model.id))
    held = [row.position for row in rows if part is not None and row.position in part.restricted]
    if part is None or not held:
        raise NotFound("example_not_found", "No active example with this id is about this person.")
    part.restricted = [position for position in part.restricted if position not in held]
    ledger.restore(session, model, held[:1])
    return restriction


def complete(session: Session, model: Model, body: Correction) -> dict[str, Any]:
    """The whole content of the corrected example."""
    row = subject_examples.example_in_force(session, model.id, body.id)
    old = of_example(row, layout_at(session, model.id, model.head))
    x = old.x if body.x is None else body.x
    if isinstance(old.x, dict) and isinstance(body.x, dict):
        x = old.x | body.x
    return {"x": x, "y": old.y if body.y is None else body.y}
