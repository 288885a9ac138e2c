"""OpenTelemetry traces: a request, the jobs that it causes, and what they publish to MLflow.

They are off, and nothing of OpenTelemetry is imported, unless the standard variable OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. Spans have ids, routes and the names of models, but neither data nor paths,
which may contain ids of people.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
HEADER = "traceparent"
MAX_TRACEPARENT = 55
FLUSH_SECONDS = 3.0
"""How long a process that ends waits for the collector."""


def enabled() -> bool:
    """Whether the environment asks for traces. This takes a microsecond."""
    variable = os.environ.get
    disabled = variable("OTEL_SDK_DISABLED", "").lower() == "true" or variable("OTEL_TRACES_EXPORTER") == "none"
    return not disabled and any(os.environ.get(name) for name in ENDPOINTS)


@lru_cache(maxsize=1)
def provider_of(_process: int) -> TracerProvider:
    """The provider of a process. Each has its own: the thread that exports spans does not survive a fork."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    os.environ.setdefault("OTEL_SERVICE_NAME", "amend")
    provider = TracerProvider(resource=Resource.create())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@lru_cache(maxsize=1)
def tracer_of(process: int) -> Tracer:
    return provider_of(process).get_tracer("amend")


def flush() -> None:
    """Export the spans of this process. Call it in processes that end by a signal or by `os._exit`, because neither
    runs the exit handler of OpenTelemetry.
    """
    if enabled():
        exporting = threading.Thread(target=provider_of(os.getpid()).force_flush, daemon=True)
        exporting.start()
        exporting.join(FLUSH_SECONDS)


def span(
    name: str, parent: str | None = None, *, server: bool = False, **attributes: Any
) -> AbstractContextManager[Span | None]:
    """Trace a piece of work, as a child of the span with the traceparent `parent`, by default of the current one."""
    if not enabled():
        return nullcontext()
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    above = TraceContextTextMapPropagator().extract({HEADER: parent}) if parent else None
    known = {f"amend.{key}": value for key, value in attributes.items() if value is not None}
    kind = SpanKind.SERVER if server else SpanKind.INTERNAL
    # messages of exceptions may contain data
    return tracer_of(os.getpid()).start_as_current_span(
        name, above, kind, known, record_exception=False, set_status_on_exception=False
    )


def traceparent() -> str | None:
    """The current span, as jobs store it to continue its trace in another process."""
    if not enabled():
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)


def note(event: str) -> None:
    """Record that the work of the current span has reached a step."""
    if enabled():
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(event)


def mark_failed(code: str) -> None:
    """Mark the current span as failed, with the code of the error."""
    if enabled():
        from opentelemetry.trace import StatusCode, get_current_span

        get_current_span().set_attribute("error.type", code)
        get_current_span().set_status(StatusCode.ERROR)
