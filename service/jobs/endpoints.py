"""Endpoints of adaptations, retrains and jobs."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Conflict, NotFound
from core.jobs import leases, queue
from core.jobs.queries import find_job, page_jobs
from core.lifecycle.job_completion import follow_up
from core.models import catalog
from core.tables.audit import Action
from core.tables.jobs import ENDED, JobKind, JobState
from service.context import Context, ContextDep
from service.http.auth import Admin, Caller, Reader
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write
from service.jobs.schemas import JobResponse, of_job
from service.models.endpoints import Name

SHORTEST_PAUSE, LONGEST_PAUSE = 0.03, 1.0
"""Seconds between two looks at a job that a request waits for."""

router = APIRouter(prefix="/v1", tags=["Work"], route_class=AuthenticatedRoute)

Id = Annotated[str, Path(description="Id of the job, or a unique prefix of at least six characters.", max_length=36)]


def about_job(job: JobResponse) -> list[About]:
    return [About(job.model, job_id=job.id)]


def start_job(name: str, kind: JobKind, caller: Caller, write: UnitOfWork) -> Response:
    def enqueue(session: Session) -> JobResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        if model.train_count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples. Add examples first.")
        return of_job(queue.enqueue(session, model, kind, write.request_id), model.name)

    return write(caller, 202, enqueue, Action.JOB_REQUESTED, about_job)


@router.post(
    "/models/{name}/adaptations", status_code=202, response_model=JobResponse, responses=problem_responses(404, 409)
)
def adapt(name: Name, caller: Admin, write: Write) -> Response:
    """Adapt the model to the head of its ledger now. The first call trains it. A queued job is reused."""
    return start_job(name, JobKind.ADAPT, caller, write)


@router.post(
    "/models/{name}/retrains", status_code=202, response_model=JobResponse, responses=problem_responses(404, 409)
)
def retrain(name: Name, caller: Admin, write: Write) -> Response:
    """Retrain the model from scratch at the head of its ledger, and compare it with the adapted model."""
    return start_job(name, JobKind.RETRAIN, caller, write)


def load(context: Context, id: str, caller: Caller) -> JobResponse:
    with context.database.read() as session:
        job, model = find_job(session, id, caller.models)
        return of_job(job, model.name)


@router.get("/jobs/{id}", response_model=JobResponse, responses=problem_responses(404, 409))
async def show_job(
    request: Request,
    id: Id,
    caller: Reader,
    context: ContextDep,
    wait: Annotated[
        float,
        Query(
            ge=0, le=3600, description="Return when the job ends or after this many seconds, at most AMEND_MAX_WAIT."
        ),
    ] = 0,
) -> JobResponse:
    """Get a job. With `wait`, the request returns when the job ends or after that many seconds (long poll)."""
    start = time.monotonic()
    end = start + min(wait, context.settings.max_wait)
    while True:
        job = await run_in_threadpool(load, context, id, caller)
        id = job.id  # the full id: another job with the same prefix may be created meanwhile
        now = time.monotonic()
        left = end - now
        if job.state in ENDED or left <= 0 or context.stopping or await request.is_disconnected():
            return job
        # a share of the time so far: the response comes at most a tenth later than it could
        pause = min(max(0.1 * (now - start), SHORTEST_PAUSE), LONGEST_PAUSE)
        await asyncio.sleep(min(pause, left))


@router.get("/jobs", response_model=Page[JobResponse], responses=problem_responses(404))
def list_jobs(
    caller: Reader,
    context: ContextDep,
    model: Annotated[str | None, Query(max_length=63, description="List only jobs of this model.")] = None,
    state: Annotated[JobState | None, Query(description="List only jobs in this state.")] = None,
    kind: Annotated[JobKind | None, Query(description="List only jobs of this kind.")] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[JobResponse]:
    """List jobs, newest first."""
    with context.database.read() as session:
        of_model = None if model is None else catalog.find(session, model, caller.models)
        rows = page_jobs(session, caller.models, of_model, state, kind, after, limit + 1)
        return page_of(rows, limit, lambda row: of_job(*row), lambda row: row[0].id)


@router.post("/jobs/{id}/cancel", response_model=JobResponse, responses=problem_responses(404, 409))
def cancel_job(id: Id, caller: Admin, write: Write) -> Response:
    """Cancel a job. A queued job ends at once; a running job stops soon after."""

    def cancel(session: Session) -> JobResponse:
        locked = leases.lock(session, find_job(session, id, caller.models)[0].id)
        if locked is None:
            raise NotFound("job_not_found", "The job does not exist.")
        job, model = locked
        leases.cancel(job)
        follow_up(session, job, model)
        return of_job(job, model.name)

    return write(caller, 200, cancel, Action.JOB_CANCELLED, about_job)
