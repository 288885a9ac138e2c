"""The page about the analyses of a model: the newest ones, with charts, and buttons for suspicious labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi import APIRouter
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.analyses.charts import draw
from core.errors import NotFound
from core.tables.analyses import AnalysisKind
from core.tables.keys import Scope
from service.analyses.endpoints import find_for_page
from service.analyses.schemas import AnalysisResponse
from service.context import ContextDep
from service.examples.endpoints import find_cached_model, read_body, replace_in, show_example
from service.http.auth import Caller
from service.http.request_audit import AuditorDep
from service.http.unit_of_work import UnitOfWork
from service.pages.page_route import PageRoute
from service.pages.privacy.corrections import read_label
from service.pages.rendering import render
from service.pages.sign_in import FormDep, VisitorDep
from service.removals import NewRemoval, remove_examples

router = APIRouter(prefix="/models/{name}/analyses", route_class=PageRoute, include_in_schema=False)

MAX_ROWS = 20
TITLES = {
    "preview": "Preview of a change",
    "leave_one_out": "Leave-one-out",
    "cross_validation": "Cross-validation",
    "tuning": "Tuning",
    "influence": "Influence",
    "labelling": "What to label next",
}
DONE = {
    "remove": "The example was removed; the model is being adapted.",
    "relabel": "The label was corrected; the model is being adapted.",
}


@dataclass(frozen=True)
class ShownAnalysis:
    """An analysis on the page."""

    found: AnalysisResponse
    title: str
    question: str
    """What was analysed, in a sentence."""
    failure: str
    """Why its job failed; "" if it did not."""
    chart: Markup | None
    rows: list[dict[str, Any]]
    """The first rows of the result."""
    suggested: dict[str, str] = field(default_factory=dict)
    """By example, the label that the model predicts without it, if that is another one."""


@router.get("")
def show_analyses(name: str, visitor: VisitorDep, context: ContextDep, done: str = "") -> Response:
    """Show the newest analyses of a model."""
    visitor.caller.require(Scope.ANALYSE)
    shown = [show(found, failure) for found, failure in find_for_page(context, visitor.caller, name)]
    return HTMLResponse(render("analyses.html", visitor, name=name, shown=shown, done=DONE.get(done, "")))


@router.post("/{action}")
async def act(name: str, action: str, visitor: VisitorDep, form: FormDep, auditor: AuditorDep) -> Response:
    """Remove an example with a suspicious label, or correct the label, with the functions of the API."""
    if action not in DONE:
        raise NotFound("path_not_found", "This page does not exist.")
    visitor.caller.require(Scope.ADMIN)
    await run_in_threadpool(carry_out, action, name, form, visitor.caller, UnitOfWork(auditor))
    return RedirectResponse(f"/models/{name}/analyses?done={action}", 303)


def carry_out(action: str, name: str, form: Mapping[str, str], caller: Caller, write: UnitOfWork) -> None:
    context, id = write.context, form.get("id", "")
    if action == "remove":
        remove_examples(name, NewRemoval(ids=[id]), caller, context, write)
        return
    example = show_example(name, id, caller, context, write.auditor)
    model = find_cached_model(name, caller, context)
    body = msgspec.json.encode({"x": example.x, "y": read_label(model.spec, form.get("y", ""))})
    replace_in(name, model, read_body(model, context, "application/json", body, id), caller, write, len(body))


def show(found: AnalysisResponse, failure: str) -> ShownAnalysis:
    result = found.result or {}
    rows: list[dict[str, Any]] = next(
        (result[name] for name in ("table", "folds", "rows", "predictions") if name in result), []
    )
    plain = [{name: value for name, value in row.items() if is_plain(value)} for row in rows[:MAX_ROWS]]
    title, question = TITLES[found.kind.value], describe(found.kind, found.request)
    suggested = suggest(rows[:MAX_ROWS]) if found.kind is AnalysisKind.LEAVE_ONE_OUT else {}
    return ShownAnalysis(found, title, question, failure, draw(found.kind.value, result), plain, suggested)


def is_plain(value: Any) -> bool:
    """Whether a value fits into a cell of a table."""
    return value is None or isinstance(value, (str, int, float))


def suggest(rows: list[dict[str, Any]]) -> dict[str, str]:
    """By id: the likeliest label of each row, if that is not its own.

    >>> suggest([{"id": "a", "y": 1, "mean": 0.1, "suspicion": 0.9}, {"id": "b", "y": 1, "mean": 0.9, "suspicion": 0}])
    {'a': '0'}
    >>> suggest([{"id": "c", "y": "cat", "mean": {"cat": 0.1, "dog": 0.9}, "suspicion": 0.9}])
    {'c': 'dog'}
    """
    found: dict[str, str] = {}
    for row in rows:
        mean, y = row.get("mean"), row.get("y")
        if row.get("id") is None or "suspicion" not in row or isinstance(y, list):
            continue
        if isinstance(mean, dict):
            likely = max(mean, key=mean.__getitem__)
        elif y in (0, 1) and isinstance(mean, float) and 0 <= mean <= 1:
            likely = str(int(mean > 0.5))
        else:
            continue
        if likely != (str(y) if isinstance(mean, dict) else str(int(y or 0))):
            found[row["id"]] = likely
    return found


def describe(kind: AnalysisKind, request: dict[str, Any]) -> str:
    """What was analysed.

    >>> describe(AnalysisKind.PREVIEW, {"remove": {"source": "monday"}, "erasure": False})
    'What if all examples of the source monday were removed?'
    >>> describe(AnalysisKind.PREVIEW, {"remove": {"subjects": 1}, "erasure": True})
    'What if the examples of 1 person were erased?'
    >>> describe(AnalysisKind.TUNING, {"parameter": "regularizer.delta", "values": [1.0, 10.0], "folds": 5})
    'Which of 2 values of regularizer.delta is best, from 1 to 10, in 5 folds?'
    """
    match kind:
        case AnalysisKind.PREVIEW:
            return f"What if {' and '.join(describe_changes(request))}?"
        case AnalysisKind.LEAVE_ONE_OUT:
            return f"What would the model predict for each {request.get('by', 'example')} without having learnt it?"
        case AnalysisKind.CROSS_VALIDATION:
            return f"How good are models that learnt all but one of {request['folds']} folds of {request['by']}s?"
        case AnalysisKind.TUNING:
            values, parameter, folds = request["values"], request["parameter"], request["folds"]
            between = f"from {min(values):g} to {max(values):g}"
            asked = f"Which of {len(values)} values of {parameter} is best, {between}, in {folds} folds?"
            return asked + (" Requested by the policy." if request.get("scheduled") else "")
        case AnalysisKind.INFLUENCE:
            return f"How would predictions or the holdout loss change without each {request['by']}?"
        case AnalysisKind.LABELLING:
            return f"Which {request['top']} inputs tell the model most when they are labelled?"


def describe_changes(request: dict[str, Any]) -> list[str]:
    """The parts of a previewed change."""
    parts, remove = [], request.get("remove") or {}
    verb = "erased" if request.get("erasure") else "removed"
    if "source" in remove:
        parts.append(f"all examples of the source {remove['source']} were {verb}")
    elif "ids" in remove:
        count = len(remove["ids"])
        parts.append(f"{count} example{'s were' if count != 1 else ' was'} {verb} by id")
    elif "subjects" in remove:
        people = "1 person" if remove["subjects"] == 1 else f"{remove['subjects']} people"
        parts.append(f"the examples of {people} were {verb}")
    parts += [f"the {kind} changed" for kind, _ in request.get("change", [])]
    return parts or ["examples were added"]
