"""Endpoints of analyses."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.analyses import records, requests
from core.audit.entries import About
from core.errors import Conflict
from core.jobs import queue
from core.kprior.model.spec import Spec
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.models.policy import policy_of
from core.tables.analyses import AnalysisKind
from core.tables.audit import Action
from core.tables.jobs import Job, JobState
from core.tables.models import Model
from service.analyses.immediate import compute_now, is_outdated, require_tip
from service.analyses.parsing import parse, prepare
from service.analyses.schemas import AnalysisResponse, PreviewRequest, StartedAnalysisResponse, adapter, of_analysis
from service.context import Context, ContextDep
from service.http.auth import Analyst, Caller
from service.http.body_threads import run_for_body
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write
from service.models.endpoints import Name

router = APIRouter(prefix="/v1/models/{name}/analyses", tags=["Analyses"], route_class=AuthenticatedRoute)

Id = Annotated[str, Path(description="Id of the analysis.", max_length=36)]


def inline_schema() -> dict[str, Any]:
    """The JSON schema of a request, without references; objects within objects of the same kind are not described."""
    schema = adapter.json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(part: Any, outer: tuple[str, ...] = ()) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                name = part["$ref"].rpartition("/")[2]
                return {} if name in outer else resolve(definitions[name], (*outer, name))
            return {name: resolve(value, outer) for name, value in part.items() if name != "discriminator"}
        return [resolve(value, outer) for value in part] if isinstance(part, list) else part

    made: dict[str, Any] = resolve(schema)
    return made


EXAMPLE = {"kind": "preview", "remove": {"source": "import-7"}}
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": inline_schema(), "example": EXAMPLE}},
    }
}


@router.post(
    "",
    status_code=202,
    response_model=StartedAnalysisResponse,
    responses=problem_responses(404, 409, 413) | {200: {"model": AnalysisResponse, "description": "Finished"}},
    openapi_extra=BODY,
)
async def start_analysis(request: Request, name: Name, caller: Analyst, write: Write) -> Response:
    """Analyse a model: preview a change, predict each example without it, cross-validate, tune a parameter, measure
    the influence of examples, or choose inputs to label. Nothing changes.

    If no pass over the examples is needed, the response is the finished analysis (200); otherwise a job computes it
    (202).
    """
    body = await request.body()
    return await run_for_body(body, lambda: start(name, body, caller, write))


class Outdated(Exception):
    """A result may name examples that were removed since it was computed."""


def start(name: str, body: bytes, caller: Caller, write: UnitOfWork) -> Response:
    given = parse(body)
    while True:
        try:
            return try_to_start(name, given, caller, write)
        except Outdated:
            continue  # with the examples that are left


def try_to_start(name: str, given: Any, caller: Caller, write: UnitOfWork) -> Response:
    context = write.context
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        require_tip(session, model)
        spec = spec_at(session, model.id, model.spec, model.head)
        check_change_of(session, model, spec, given)
    request = prepare(given, spec, policy_of(model).holdout_draw, context)
    finished = compute_now(context, model, request)
    kind, position, job_id = AnalysisKind(given.kind), model.head, None

    def record(session: Session) -> tuple[int, AnalysisResponse | StartedAnalysisResponse]:
        nonlocal job_id
        locked = catalog.find(session, name, caller.models, lock=True)
        require_tip(session, locked)  # data of a person may be erased since
        if finished is not None:
            if is_outdated(session, locked, request, finished):
                raise Outdated
            subject, result, cost = finished
            analysis = records.create(session, locked, kind, request.stored, caller.key_id)
            records.finish(analysis, subject.at, subject.tip.number, result, cost)
            return 200, of_analysis(analysis, locked.name)
        if locked.train_count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples. Add examples first.")
        job_id = queue.enqueue_analysis(session, locked, caller.key_id, write.request_id).id
        analysis = records.create(session, locked, kind, request.stored, caller.key_id, job_id)
        return 202, StartedAnalysisResponse(id=analysis.id, job=job_id)

    def about(result: Any) -> list[About]:
        return [About(name, position=position, job_id=job_id, object_id=result.id)]

    return write.with_status(caller, record, Action.ANALYSIS_REQUESTED, about)


def check_change_of(session: Session, model: Model, spec: Spec, given: Any) -> None:
    """Refuse a preview of a change of columns or classes that is impossible."""
    if isinstance(given, PreviewRequest) and given.change is not None:
        requests.check_parts(session, model, spec, given.change.parts(spec["input"]))


@router.get("", response_model=Page[AnalysisResponse], responses=problem_responses(404))
def list_analyses(
    name: Name,
    caller: Analyst,
    context: ContextDep,
    kind: Annotated[AnalysisKind | None, Query(description="List only analyses of this kind.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[AnalysisResponse]:
    """List the analyses of a model, newest first, without their results."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        found = records.page(session, model, kind, after, limit + 1)

        def item(row: Any) -> AnalysisResponse:
            return of_analysis(row, model.name).model_copy(update={"result": None})

        return page_of(found, limit, item, lambda row: row.id)


@router.get("/{id}", response_model=AnalysisResponse, responses=problem_responses(404))
def show_analysis(name: Name, id: Id, caller: Analyst, context: ContextDep, auditor: AuditorDep) -> AnalysisResponse:
    """Get an analysis with its result. `result` is null until the job has finished."""
    with context.database.write() as session:
        model = catalog.find(session, name, caller.models)
        found = of_analysis(records.find(session, model, id), model.name)
        if found.result is not None:
            auditor.record(session, caller, Action.ANALYSIS_READ, About(name, object_id=id))
        return found


def find_for_page(context: Context, caller: Caller, name: str) -> list[tuple[AnalysisResponse, str]]:
    """The newest analyses of a model, with their results, and why their jobs failed ("" if they did not)."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        rows = records.page(session, model, None, None, 20)
        jobs = {row.id: session.get(Job, row.job_id) for row in rows if row.job_id and row.result is None}
        return [(of_analysis(row, model.name), describe_failure(jobs.get(row.id))) for row in rows]


def describe_failure(job: Job | None) -> str:
    if job is not None and job.error:
        return job.error["detail"]
    return "The job was cancelled." if job is not None and job.state is JobState.CANCELLED else ""
