"""Correcting an example about a person (GDPR Art. 16): from the list of the person's examples to a form."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, Response

from core.audit.entries import About
from core.errors import AmendError, NotFound
from core.kprior.model.spec import Spec
from core.ledger.spec_history import layout_at
from core.models import catalog
from core.tables.audit import Action
from service.context import Context, ContextDep
from service.examples.schemas import ExampleResponse
from service.http.problems import STATUS
from service.http.request_audit import Auditor, AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.pages.page_route import PageRoute
from service.pages.privacy.officers import OfficerDep, OfficersForm
from service.pages.privacy.parsing import explain, parse
from service.pages.privacy.person import subject_in
from service.pages.rendering import render
from service.pages.sign_in import Visitor
from service.parsing.label_lists import NONE, SEPARATOR
from service.rights.access_report import MAX_RECORDS, read_records, show_value
from service.rights.corrections import Correction, correct_subject
from service.subjects import hash_subject, read_model

router = APIRouter(prefix="/privacy", route_class=PageRoute, include_in_schema=False)

MAX_FIELDS = 200
"""Number of values up to which an example can be corrected in a form."""


@dataclass(frozen=True)
class Field:
    """A field of the form."""

    name: str
    label: str
    value: str
    choices: list[str] | None = None


def read_examples(
    visitor: Visitor, form: Mapping[str, str], context: Context, auditor: Auditor
) -> tuple[Spec, list[tuple[ExampleResponse, bool]]]:
    """The examples of a person in a model, as many as the page shows; or the one that the form names."""
    subject = hash_subject(subject_in(form), context)
    with context.database.read() as session:
        model = catalog.find(session, form.get("model", ""), visitor.caller.models)
        layout = layout_at(session, model.id, model.head)
    found = read_model(context, subject, model.id, layout)
    if id := form.get("id"):
        chosen = [(example, in_force) for example, in_force in found if example.id == id][-1:]
    else:
        chosen = list(islice(found, MAX_RECORDS))
    auditor.record_read(visitor.caller, Action.EXAMPLES_READ, About(model.name, counts={"examples": len(chosen)}))
    return layout.spec, chosen


@router.post("/person/examples")
def list_examples(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Show the person's examples in a model."""
    _, found = read_examples(visitor, form, context, auditor)
    records = read_records(found)
    columns = list(records[0].values) if records else []
    return HTMLResponse(render("privacy/examples.html", visitor, form=form, records=records, columns=columns))


@router.post("/person/example")
def show_example(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Show the form in which an example is corrected."""
    return HTMLResponse(render_form(visitor, form, context, auditor))


def render_form(
    visitor: Visitor, form: Mapping[str, str], context: Context, auditor: Auditor, problem: str = "", done: bool = False
) -> str:
    spec, found = read_examples(visitor, form, context, auditor)
    if not found:
        raise NotFound("example_not_found", "This person has no example with this id in the model.")
    example, _ = found[0]
    fields = fields_of(spec, example)
    entered = {field.name: form.get(field.name, field.value) if problem else field.value for field in fields or []}
    values = {"form": form, "fields": fields, "entered": entered, "problem": problem, "done": done}
    return render("privacy/correct.html", visitor, **values, label=show_label(example))


def fields_of(spec: Spec, example: ExampleResponse) -> list[Field] | None:
    """The fields of an example; None if it has too many for a form, or is an image."""
    described = spec["input"]
    if described["kind"] == "table":
        columns = described["columns"]
        if len(columns) > MAX_FIELDS:
            return None
        return [
            Field(f"x.{column['name']}", column["name"], "" if value is None else show_value(value), choices_of(column))
            for column in columns
            for value in [example.x.get(column["name"])]
        ]
    if described["kind"] == "vector" and len(example.x) <= MAX_FIELDS:
        return [Field(f"x.{i}", f"value {i + 1}", show_value(value)) for i, value in enumerate(example.x)]
    return None


def choices_of(column: Mapping[str, Any]) -> list[str] | None:
    return [str(value) for value in column.get("values") or []] or None


@router.post("/person/correct")
async def correct(visitor: OfficerDep, form: OfficersForm, context: ContextDep, auditor: AuditorDep) -> Response:
    """Correct an example, and show it as it is now."""

    def act() -> Response:
        try:
            body = read_correction(visitor, form, context)
            correct_subject(body, visitor.caller, context, UnitOfWork(auditor))
        except NotFound:
            raise
        except AmendError as error:
            page = render_form(visitor, form, context, auditor, explain(error))
            return HTMLResponse(page, STATUS[type(error)])
        return HTMLResponse(render_form(visitor, form, context, auditor, done=True))

    return await run_in_threadpool(act)


def read_correction(visitor: Visitor, form: Mapping[str, str], context: Context) -> Correction:
    """The correction that a form describes."""
    with context.database.read() as session:
        model = catalog.find(session, form.get("model", ""), visitor.caller.models)
        spec = layout_at(session, model.id, model.head).spec
    values = {name.removeprefix("x."): text.strip() for name, text in form.items() if name.startswith("x.")}
    described = spec["input"]
    x: Any
    if described["kind"] == "table":
        types = {column["name"]: column["type"] for column in described["columns"]}
        x = {name: read_value(text, types.get(name) == "number") for name, text in values.items()}
    else:
        x = [read_value(values.get(str(i), ""), numeric=True) for i in range(len(values))]
    given: dict[str, Any] = {name: form.get(name, "") for name in ("subject", "model", "id")}
    if values:
        given["x"] = x
    if label := form.get("label", "").strip():
        given["y"] = read_label(spec, label)
    if reference := form.get("reference", "").strip():
        given["reference"] = reference
    return parse(Correction, given)


def read_value(text: str, numeric: bool) -> object:
    """A value of a form: a number where the column has numbers, otherwise text; empty means unknown."""
    if not text:
        return None
    if numeric:
        try:
            return float(text)
        except ValueError:
            return text  # the API says what is wrong, and where
    return text


def show_label(example: ExampleResponse) -> str | None:
    if isinstance(example.y, list):
        return SEPARATOR.join(map(str, example.y)) or NONE
    return None if example.y is None else str(example.y)


def read_label(spec: Spec, text: str) -> object:
    target = spec["target"]
    if target["kind"] == "classes":
        return next((value for value in target["values"] if str(value) == text), text)
    if target["kind"] == "labels":
        names = [] if text == NONE else [name.strip() for name in text.split(SEPARATOR)]
        return [next((value for value in target["values"] if str(value) == name), name) for name in names]
    value = read_value(text, numeric=True)
    return int(value) if isinstance(value, float) and value.is_integer() else value
