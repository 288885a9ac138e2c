"""Health, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import anyio
import httpx
import redis
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from core.database import now
from core.errors import Unavailable
from core.jobs.queries import last_heartbeat
from core.tracking import publisher
from core.versions import store_identity
from service import metrics
from service.context import Context, ContextDep
from service.http.auth import CheckedRoute, Reader
from service.http.problems import problem_responses

router = APIRouter(tags=["Operations"], route_class=CheckedRoute)

PROBE_SECONDS = 2.0
"""How long a component may take to answer."""
PROBE_THREADS = anyio.CapacityLimiter(20)
"""Threads for readiness alone: a component that hangs must not take those of requests."""


class Health(BaseModel):
    """This process answers."""

    status: Literal["ok"] = "ok"


class Part(BaseModel):
    """One part that the service leans on."""

    ok: bool
    detail: str


class Readiness(BaseModel):
    """Whether everything is there: `down` if work cannot be done, `degraded` if only dashboards stand still."""

    status: Literal["ready", "degraded", "down"]
    database: Part
    store: Part
    broker: Part
    worker: Part
    mlflow: Part


def database(context: Context) -> str:
    context.database.ping()
    return "answers"


def store(context: Context) -> str:
    try:
        store_identity.check(context.store, context.store_id)
    except Unavailable as error:
        if error.code == store_identity.FOREIGN:
            raise LookupError(error.detail) from None
        raise
    return "answers"


def broker(context: Context) -> str:
    url = context.settings.broker.replace("redis+socket://", "unix://")
    with redis.Redis.from_url(url, socket_timeout=PROBE_SECONDS, socket_connect_timeout=PROBE_SECONDS) as client:
        client.ping()
    return "answers"


def worker(context: Context) -> str:
    with context.database.read() as session:
        seen = last_heartbeat(session)
    if seen is None:
        raise LookupError("no worker was ever seen")
    silent = now() - seen
    if silent > timedelta(seconds=context.settings.worker_silence):
        raise LookupError(f"last heard of {int(silent.total_seconds())} s ago")
    return "alive"


def mlflow(context: Context) -> str:
    if not context.settings.mlflow_url:
        raise LookupError("not configured")
    try:
        publisher.ask(context.settings.mlflow_url, PROBE_SECONDS, context.settings.mlflow_password.get_secret_value())
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 401:
            raise LookupError("refuses our password: see AMEND_MLFLOW_PASSWORD") from None
        raise
    return "answers"


async def check_in_time(check: Callable[[Context], str], context: Context) -> Part:
    with anyio.move_on_after(2 * PROBE_SECONDS):
        return await anyio.to_thread.run_sync(check_part, check, context, abandon_on_cancel=True, limiter=PROBE_THREADS)
    return Part(ok=False, detail=f"does not answer in {2 * PROBE_SECONDS:.0f} s")


def check_part(check: Callable[[Context], str], context: Context) -> Part:
    try:
        return Part(ok=True, detail=check(context))
    except LookupError as error:
        return Part(ok=False, detail=str(error.args[0]))
    except Exception as error:  # whatever is wrong with a part is for this page to tell, in a word
        return Part(ok=False, detail=f"does not answer ({type(error).__name__})")


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=Health)
async def health() -> Health:
    """Whether this process is alive."""
    return Health()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}})
async def readiness(context: ContextDep) -> Response:
    """Whether database, store, broker, worker and MLflow are there, and which is not."""
    answer = await check_parts(context)
    return JSONResponse(answer.model_dump(), 503 if answer.status == "down" else 200)


async def check_parts(context: Context) -> Readiness:
    """Ask all parts at once; those that hang are waited for no longer than the others may take."""
    checks = (database, store, broker, worker, mlflow)
    parts = await asyncio.gather(*(check_in_time(check, context) for check in checks))
    named = {check.__name__: part for check, part in zip(checks, parts, strict=True)}
    # without MLflow only the dashboards stand still: no reason to send callers elsewhere
    down = not all(part.ok for name, part in named.items() if name != "mlflow")
    status = "down" if down else "ready" if named["mlflow"].ok else "degraded"
    return Readiness.model_validate({"status": status, **named})


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Metrics"},
        **problem_responses(),
    },
)
def show_metrics(caller: Reader, context: ContextDep) -> Response:
    """Figures for Prometheus."""
    caller.require_all_models()
    figures = metrics.page(context)
    return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")
