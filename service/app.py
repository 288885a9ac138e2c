"""The application: endpoints, error answers and middleware put together."""

from __future__ import annotations

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

from core import logs
from core.settings import Settings, split_list
from service import imports, keys, operations, removals, subjects, webhooks
from service.context import Context
from service.erasures import endpoints as erasures
from service.examples import endpoints as examples
from service.examples import exports
from service.http import problems
from service.http.fast_path import FastPath
from service.http.middleware import BodyLimit, MonotonicReads, RequestLog
from service.jobs import endpoints as jobs
from service.models import endpoints as models
from service.open_inference import endpoints as open_inference
from service.open_inference.endpoints import HEAD_LENGTH
from service.openapi import document_of
from service.pages import model, overview, privacy, visitors
from service.predictions import bulk
from service.predictions import endpoints as predictions
from service.predictions.version_cache import VersionCache
from service.versions import downloads
from service.versions import endpoints as versions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of mallopt, from malloc.h."""

DESCRIPTION = """
Keeps a deployed model current, and makes it forget, without retraining it.

Send an API key with everything but `/healthz` and `/readyz`: `Authorization: Bearer amend_...`.
An `Idempotency-Key` on a POST makes it safe to repeat. Bodies may come with a `Content-Encoding` of `gzip` or `zstd`.
Errors are `application/problem+json` with a stable `code`.
"""


def tune_malloc() -> None:
    """Have the C library keep what it frees: the bodies of requests are large, and pages from the system come slowly.

    A batch of 10 000 examples is taken in a quarter faster.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        library.mallopt(M_MMAP_THRESHOLD, 64 * 2**20)
        library.mallopt(M_TRIM_THRESHOLD, 256 * 2**20)


def create_app() -> ASGIApp:
    """The service for the settings of the environment.

    Our own outermost layers are not FastAPI's middleware: its layers around that take as long as a prediction.
    """
    settings = Settings()
    logs.configure(settings.log_level)
    tune_malloc()
    return RequestLog(allow_origins(FastPath(build(settings)), split_list(settings.cors_origins)))


def allow_origins(app: ASGIApp, origins: list[str]) -> ASGIApp:
    """Let pages of other origins call from a browser, with keys of their own: no cookie of ours counts for them."""
    if not origins:
        return app
    headers = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "X-Request-ID", HEAD_LENGTH]
    exposed = ["X-Request-ID", "Retry-After", "Idempotent-Replayed", HEAD_LENGTH]
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=methods, allow_headers=headers, expose_headers=exposed
    )


def note_stop_signal(context: Context) -> None:
    """Note the signal to stop before the server heeds it: it waits for open requests, and long polls wait for jobs."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def stop(got: int, frame: FrameType | None, before: Any = before) -> None:
            context.stopping = True
            if callable(before):
                before(got, frame)

        signal.signal(number, stop)


def build(settings: Settings) -> FastAPI:
    """The endpoints and what FastAPI needs to know about them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.context = Context(settings)
        app.state.champions = VersionCache(app.state.context)
        note_stop_signal(app.state.context)
        evicting = asyncio.create_task(app.state.champions.keep_evicting())
        gc.freeze()  # what is there by now stays: looking through it for garbage costs a tenth of a second each time
        gc.enable()
        yield
        evicting.cancel()
        app.state.context.close()

    app = FastAPIOffline(
        title="Amend",
        version=importlib.metadata.version("amend"),
        description=DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=operation_id,
        redoc_url=None,
        redirect_slashes=False,
        # a framework that sends traces and errors elsewhere would send what is in them
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    problems.install(app)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(MonotonicReads)
    app.mount("/assets", StaticFiles(packages=[("service.pages", "static")]))
    app.openapi = lambda: document_of(app)  # type: ignore[method-assign]
    data = (exports, examples, removals)  # in this order: else `export` would be taken for an example's id
    made = (jobs, imports, versions, downloads, predictions, bulk)
    pages = (overview, model, privacy, visitors)
    for resource in (models, *data, *made, erasures, subjects, keys, webhooks, operations, *pages):
        app.include_router(resource.router)
    app.include_router(open_inference.health)
    app.include_router(open_inference.router)
    return app


def operation_id(route: APIRoute) -> str:
    return route.name
