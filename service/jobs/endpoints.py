"""Endpoints of work: adaptations, retrains, and the jobs that carry them out."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.erasure.job_end import follow_up
from core.errors import Conflict, NotFound
from core.jobs import leases, queue
from core.jobs.queries import find_job, page_jobs
from core.models import catalog
from core.tables.jobs import ENDED, JobKind, JobState
from service.context import Context, ContextDep
from service.http.auth import Admin, AuthenticatedRoute, Caller, Reader
from service.http.pages import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.unit_of_work import UnitOfWork, Write
from service.jobs.schemas import JobAnswer, job_answer
from service.models.endpoints import Name

router = APIRouter(prefix="/v1", tags=["Work"], route_class=AuthenticatedRoute)

Id = Annotated[str, Path(description="The job's id, or six or more characters that it begins with.", max_length=36)]


def ask(name: str, kind: JobKind, caller: Caller, write: UnitOfWork) -> Response:
    def enqueue(session: Session) -> JobAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        if model.train_count == 0:
            raise Conflict("nothing_to_train_on", "The model has no training examples in force.")
        return job_answer(queue.enqueue(session, model, kind, write.request_id), model.name)

    return write(caller.credential, 202, enqueue)


@router.post(
    "/models/{name}/adaptations", status_code=202, response_model=JobAnswer, responses=problem_responses(404, 409)
)
def adapt(name: Name, caller: Admin, write: Write) -> Response:
    """Adapt the model to the head of its ledger now. The first call trains it. A job that waits already is joined."""
    return ask(name, JobKind.ADAPT, caller, write)


@router.post(
    "/models/{name}/retrains", status_code=202, response_model=JobAnswer, responses=problem_responses(404, 409)
)
def retrain(name: Name, caller: Admin, write: Write) -> Response:
    """Retrain from scratch at the head, and compare with the adapted model at the same position."""
    return ask(name, JobKind.RETRAIN, caller, write)


def load(context: Context, id: str, caller: Caller) -> JobAnswer:
    with context.database.read() as session:
        job, model = find_job(session, id, caller.models)
        return job_answer(job, model.name)


@router.get("/jobs/{id}", response_model=JobAnswer, responses=problem_responses(404, 409))
async def show_job(
    request: Request,
    id: Id,
    caller: Reader,
    context: ContextDep,
    wait: Annotated[
        float, Query(ge=0, le=3600, description="Answer when the job ends, or after this many seconds.")
    ] = 0,
) -> JobAnswer:
    """A job. With `wait` the answer comes when the job ends, or after so many seconds (60 at most)."""
    end = time.monotonic() + min(wait, context.settings.max_wait)
    pause = 0.05
    while True:
        job = await run_in_threadpool(load, context, id, caller)
        id = job.id  # whole from now on: another that begins so may come meanwhile
        left = end - time.monotonic()
        if job.state in ENDED or left <= 0 or context.stopping or await request.is_disconnected():
            return job
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, 1.0)


@router.get("/jobs", response_model=Page[JobAnswer], responses=problem_responses(404))
def list_jobs(
    caller: Reader,
    context: ContextDep,
    model: Annotated[str | None, Query(max_length=63)] = None,
    state: JobState | None = None,
    kind: JobKind | None = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[JobAnswer]:
    """Jobs, the newest first."""
    with context.database.read() as session:
        of = None if model is None else catalog.find(session, model, caller.models)
        rows = page_jobs(session, caller.models, of, state, kind, after, limit + 1)
        return page_of(rows, limit, lambda row: job_answer(*row), lambda row: row[0].id)


@router.post("/jobs/{id}/cancel", response_model=JobAnswer, responses=problem_responses(404, 409))
def cancel_job(id: Id, caller: Admin, write: Write) -> Response:
    """Cancel a job: a queued one ends at once, a running one is asked to stop."""

    def cancel(session: Session) -> JobAnswer:
        found = leases.lock(session, find_job(session, id, caller.models)[0].id)
        if found is None:
            raise NotFound("job_not_found", "There is no such job.")
        job, model = found
        leases.cancel(job)
        follow_up(session, job, model)
        return job_answer(job, model.name)

    return write(caller.credential, 200, cancel)
