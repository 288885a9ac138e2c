"""GET /healthz and /readyz: is this process alive, and are the components that it depends on available?"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import anyio
import httpx
import redis
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from core.clock import now
from core.errors import Unavailable
from core.jobs.queries import last_heartbeat
from core.register.lag import require_current
from core.tracking import publisher
from core.versions import store_identity
from service.context import Context, ContextDep
from service.http.routes import CheckedRoute

router = APIRouter(tags=["Operations"], route_class=CheckedRoute)

OK = "OK"
COMPONENTS = ("database", "store", "receipts", "broker", "worker", "mlflow")
PROBE_SECONDS = 2.0
"""Time limit for a component to respond."""
PROBE_THREADS = anyio.CapacityLimiter(20)
"""Threads for readiness checks only, so that a component that hangs does not occupy the threads of requests."""


class Health(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class ComponentStatus(BaseModel):
    """State of one component that the service depends on."""

    ok: bool
    detail: str


class Readiness(BaseModel):
    """State of all components. `down`: requests or jobs cannot be processed. `degraded`: only MLflow is unavailable."""

    status: Literal["ready", "degraded", "down"]
    database: ComponentStatus
    store: ComponentStatus
    receipts: ComponentStatus = Field(
        description="Not OK with the detail `receipts_behind` after a restore, until `amend erasures replay` was run."
    )
    broker: ComponentStatus
    worker: ComponentStatus
    mlflow: ComponentStatus


def check_database(context: Context) -> str:
    context.database.ping()
    return OK


def check_store(context: Context) -> str:
    try:
        store_identity.check(context.store, context.store_id)
    except Unavailable as error:
        if error.code == store_identity.FOREIGN:
            raise LookupError(error.detail) from None
        raise
    return OK


def check_receipts(context: Context) -> str:
    """Check that the database is not older than the store, as after a restore from a backup."""
    try:
        with context.database.read() as session:
            require_current(session, context.store)
    except Unavailable as error:
        if error.code.startswith("receipts_"):
            raise LookupError(f"{error.code}: {error.detail}") from None
        raise
    return OK


def check_broker(context: Context) -> str:
    url = context.settings.broker.replace("redis+socket://", "unix://")
    with redis.Redis.from_url(url, socket_timeout=PROBE_SECONDS, socket_connect_timeout=PROBE_SECONDS) as client:
        client.ping()
    return OK


def check_worker(context: Context) -> str:
    with context.database.read() as session:
        seen = last_heartbeat(session)
    if seen is None:
        raise LookupError("no worker has ever connected")
    silence = now() - seen
    if silence > timedelta(seconds=context.settings.worker_timeout):
        raise LookupError(f"last heartbeat {int(silence.total_seconds())} s ago")
    return OK


def check_mlflow(context: Context) -> str:
    if not context.settings.mlflow_url:
        raise LookupError("not configured")
    try:
        publisher.ask(context.settings.mlflow_url, PROBE_SECONDS, context.settings.mlflow_password.get_secret_value())
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 401:
            raise LookupError("wrong password: check AMEND_MLFLOW_PASSWORD") from None
        raise
    return OK


async def check_component(check: Callable[[Context], str], context: Context) -> ComponentStatus:
    with anyio.move_on_after(2 * PROBE_SECONDS):
        return await anyio.to_thread.run_sync(run_check, check, context, abandon_on_cancel=True, limiter=PROBE_THREADS)
    return ComponentStatus(ok=False, detail=f"no response within {2 * PROBE_SECONDS:.0f} s")


def run_check(check: Callable[[Context], str], context: Context) -> ComponentStatus:
    try:
        return ComponentStatus(ok=True, detail=check(context))
    except LookupError as error:
        return ComponentStatus(ok=False, detail=str(error.args[0]))
    except Exception as error:  # any failure of a component is reported, never raised
        return ComponentStatus(ok=False, detail=f"unavailable ({type(error).__name__})")


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=Health)
async def health() -> Health:
    """Check that the process is alive."""
    return Health()


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready"}})
async def readiness(context: ContextDep) -> Response:
    """Check the database, the store, the receipts, the broker, the workers and MLflow."""
    result = await check_components(context)
    return JSONResponse(result.model_dump(), 503 if result.status == "down" else 200)


async def check_components(context: Context) -> Readiness:
    """Check all components concurrently."""
    checks = (check_database, check_store, check_receipts, check_broker, check_worker, check_mlflow)
    results = await asyncio.gather(*(check_component(check, context) for check in checks))
    components = dict(zip(COMPONENTS, results, strict=True))
    # Without MLflow only its dashboards are out of date: no reason for a load balancer to remove this process.
    down = not all(component.ok for name, component in components.items() if name != "mlflow")
    status = "down" if down else "ready" if components["mlflow"].ok else "degraded"
    return Readiness.model_validate({"status": status, **components})
