"""The application: endpoints, error handlers and middleware."""

import asyncio
import ctypes
import gc
import importlib.metadata
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from core import logs, tracing
from core.settings import Settings, split_list
from service import (
    audit,
    drift,
    encoders,
    health,
    keys,
    labels,
    prometheus_metrics,
    quality,
    register,
    removals,
    returning_subjects,
    subjects,
    webhooks,
)
from service.analyses import endpoints as analyses
from service.context import Context
from service.erasures import bundles, letters, notices, statistics
from service.erasures import endpoints as erasures
from service.examples import endpoints as examples
from service.examples import exports
from service.http import problems
from service.http.fast_path import FastPath
from service.http.middleware import BodyLimit, MonotonicReads, RequestLog
from service.http.traced_requests import TracedRequests
from service.jobs import endpoints as jobs
from service.models import endpoints as models
from service.models import imports
from service.open_inference import endpoints as open_inference
from service.open_inference.endpoints import HEAD_LENGTH
from service.openapi import document_of
from service.pages import analyses as analyses_page
from service.pages import drift as drift_page
from service.pages import model, overview, privacy, sign_in, single_sign_on, version
from service.predictions import bulk
from service.predictions import endpoints as predictions
from service.predictions.version_cache import VersionCache
from service.rights import corrections, past_requests, restrictions
from service.versions import downloads
from service.versions import endpoints as versions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt, from malloc.h."""

DESCRIPTION = """
Amend keeps deployed models up to date and makes them forget data, without retraining them.

Every endpoint except `/healthz` and `/readyz` requires an API key: `Authorization: Bearer amend_...`.
A POST with an `Idempotency-Key` header can be retried safely. Request bodies may be compressed
(`Content-Encoding: gzip` or `zstd`). Errors are `application/problem+json` with a stable `code`.
"""


def tune_malloc() -> None:
    """Make the C library keep freed memory, because allocating the pages of large bodies anew is slow.

    A batch of 10 000 examples is stored a quarter faster. Threads share a few arenas, because each arena keeps the
    largest amount of memory that it ever needed.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_THRESHOLD, 64 * 2**20)
        library.mallopt(M_TRIM_THRESHOLD, 256 * 2**20)
        library.mallopt(M_ARENA_MAX, 4)


def create_app() -> ASGIApp:
    """The ASGI application for the settings in the environment.

    The outermost layers are not FastAPI middleware: FastAPI's own layers around it take as long as a prediction.
    """
    settings = Settings()
    logs.configure(settings.log_level)
    tune_malloc()
    app = RequestLog(allow_origins(FastPath(build(settings)), split_list(settings.cors_origins)))
    return TracedRequests(app) if tracing.enabled() else app


def allow_origins(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Allow browsers to call the API from these origins, with an API key. Sign-in cookies are not accepted."""
    if not origins:
        return app
    headers = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "X-Request-ID", HEAD_LENGTH]
    exposed = ["X-Request-ID", "Retry-After", "Idempotent-Replayed", HEAD_LENGTH]
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=methods, allow_headers=headers, expose_headers=exposed
    )


def note_stop_signal(context: Context) -> None:
    """Set `context.stopping` on SIGTERM and SIGINT, before uvicorn waits for open requests: long polls must return."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def stop(received: int, frame: FrameType | None, before: Any = before) -> None:
            context.stopping = True
            if callable(before):
                before(received, frame)

        signal.signal(number, stop)


def build(settings: Settings) -> FastAPI:
    """The FastAPI application with all endpoints."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.context = Context(settings)
        app.state.versions = VersionCache(app.state.context)
        note_stop_signal(app.state.context)
        evicting = asyncio.create_task(app.state.versions.keep_evicting())
        gc.freeze()  # modules stay in memory: scanning them for garbage takes a tenth of a second each time
        gc.enable()
        yield
        evicting.cancel()
        app.state.context.close()
        tracing.flush()

    app = FastAPIOffline(
        title="Amend",
        version=importlib.metadata.version("amend"),
        description=DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=operation_id,
        redoc_url=None,
        redirect_slashes=False,
        # traces and errors may contain personal data, so none are sent elsewhere
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, encoder_limit=settings.encoder_max_bytes)
    app.add_middleware(MonotonicReads)
    app.mount("/assets", StaticFiles(packages=[("service.pages", "static")]))
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    # in this order: otherwise `export` would match as the id of an example, and `statistics` as that of an erasure
    data = (exports, examples, labels, removals, returning_subjects)
    work = (jobs, imports, versions, downloads, quality, drift, predictions, bulk, analyses)
    rights = (subjects, past_requests, corrections, restrictions)
    privacy_work = (statistics, erasures, letters, bundles, notices, register, *rights)
    pages = (overview, model, analyses_page, drift_page, *privacy.PAGES, version, single_sign_on, sign_in)
    for resource in (
        models,
        encoders,
        *data,
        *work,
        *privacy_work,
        keys,
        webhooks,
        audit,
        health,
        prometheus_metrics,
        *pages,
    ):
        app.include_router(resource.router)
    app.include_router(open_inference.health)
    app.include_router(open_inference.router)
    return app


def operation_id(route: APIRoute) -> str:
    return route.name
