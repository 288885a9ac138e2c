"""Structured logs: one JSON object per line, with the id of the request. They contain no personal data.

Paths are logged as templates, because an example's id is part of a path, and exceptions without their messages, which
quote data.
"""

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import msgspec
import structlog

from core.clock import now

current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
"""Id of the current request."""


def with_request(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if request_id := current_request.get():
        event["request_id"] = request_id
    return event


def without_messages(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception with its type and the lines of code in its traceback."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, tuple):
        error = error[1]
    chain = []
    while isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)
        chain.append(
            {
                "type": f"{type(error).__module__}.{type(error).__qualname__}",
                "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-12:]],
            }
        )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if chain:
        event["exception"] = chain
    return event


def without_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep the format strings of other libraries' messages, but not the values."""
    record = event.get("_record")
    # the values in messages of trusted loggers are addresses, process ids and names of tasks
    if isinstance(record, logging.LogRecord) and not record.name.startswith(TRUSTED_LOGGERS):
        event["event"] = str(record.msg)
    return event


TRUSTED_LOGGERS = ("uvicorn.error", "celery", "kombu", "multiprocessing", "alembic")
"""Libraries whose log messages contain no data of requests."""


def request_line(
    request_id: str, method: str, route: str, status: int, seconds: float, key: str | None, model: str | None
) -> None:
    """Log a request: `key` is the id of the caller's key, `model` the model's name.

    The line is written directly, because the logging library takes longer than a prediction. If it cannot be written,
    as on a full disk, the line is lost, but the response is not.
    """
    if not logging.getLogger("service").isEnabledFor(logging.INFO):
        return
    line = {
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 2),
        "key": key,
        "model": model,
        "event": "request",
        "request_id": request_id,
        "level": "info",
        "logger": "service",
        "timestamp": now(),
    }
    text = msgspec.json.encode({name: value for name, value in line.items() if value is not None}) + b"\n"
    with suppress(OSError):
        os.write(1, text)


def configure(level: str) -> None:
    """Configure the logging of this process: Amend's and other libraries' messages have the same format."""
    shared: list[Any] = [
        with_request,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, without_values],
            processors=[
                without_messages,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.raiseExceptions = False  # otherwise a line that cannot be written is printed to stderr with all its values
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = name != "uvicorn.access"
