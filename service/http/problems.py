"""All errors as RFC 9457 `application/problem+json` with a stable code and without internal details."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from core import errors
from core.errors import LocatedError
from core.models.validation_messages import describe_all, drop_other_forms
from service.http.body_schemas import Schema
from service.http.fastapi_internals import body_type, matches_path

STATUS: dict[type[errors.AmendError], int] = {
    errors.Malformed: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    errors.Unsupported: 415,
    errors.Invalid: 422,
    errors.TooMany: 429,
    errors.Unavailable: 503,
}
CODES = {404: "path_not_found", 405: "method_not_allowed", 413: "body_too_large"}
MEDIA_TYPE = "application/problem+json"

log = structlog.get_logger()


class FieldProblem(BaseModel):
    """An invalid field of a request."""

    loc: list[str | int] = Field(description="Path of the field, including the index of the example in a batch.")
    msg: str


class Problem(BaseModel):
    """An error, described for programs (`code`) and for people (`detail`)."""

    type: str = Field(examples=["about:blank"])
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable identifier of the kind of error.", examples=["model_not_found"])
    errors: list[FieldProblem] | None = None
    error: str | None = Field(None, description="Copy of `detail`, under `/v2` only.")


def problem_responses(*statuses: int) -> dict[int | str, Schema]:
    """OpenAPI entries for the error responses of an endpoint; some statuses are common to all endpoints."""
    schema = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    return {
        status: {"description": HTTPStatus(status).phrase, **schema}
        for status in sorted({400, 401, 403, 413, 415, 422, 429, 503, *statuses})
    }


def respond(
    status: int,
    code: str,
    detail: str,
    located: list[LocatedError] | None = None,
    headers: Mapping[str, str] | None = None,
    request: Request | None = None,
) -> JSONResponse:
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": readable(detail),
        "code": code,
    }
    if located:
        body["errors"] = [
            {"loc": [readable(p) if isinstance(p, str) else p for p in one["loc"]], "msg": readable(one["msg"])}
            for one in located
        ]
    if request is not None and request.url.path.startswith("/v2"):
        body["error"] = body["detail"]  # for clients of the Open Inference Protocol
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def readable(text: str) -> str:
    """Text that can always be encoded: JSON strings may contain lone surrogates."""
    return text[:1000].encode("utf-8", "backslashreplace").decode()


def on_amend_error(request: Request | None, error: Exception) -> Response:
    assert isinstance(error, errors.AmendError)
    status = STATUS[type(error)]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"} if status == 503 else {}
    if isinstance(error, errors.TooMany):
        headers = {} if error.seconds is None else {"Retry-After": str(error.seconds)}
    if status == 503:
        log.warning("service_unavailable", code=error.code, exc_info=error)
    return respond(status, error.code, error.detail, error.errors, headers, request)


def on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    invalid = error.errors()
    if any(problem["type"] == "json_invalid" for problem in invalid):
        return respond(400, "body_malformed", "The body is not valid JSON.", request=request)
    placed = drop_other_forms([(location_in(error.body, problem), problem) for problem in invalid[:100]])
    messages = describe_all(body_type(request.scope["route"]), placed)
    located: list[LocatedError] = [
        {"loc": place, "msg": message} for (place, _), message in zip(placed, messages, strict=True)
    ]
    first = located[0]
    path = ".".join(str(step) for step in first["loc"]) or "body"
    # the same code as for PATCH, which changes the policy alone
    code = "policy_invalid" if first["loc"][:1] == ["policy"] else "request_invalid"
    if first["loc"][:1] == ["loss"] and invalid[0]["type"] == "union_tag_invalid":
        code = "loss_unknown"
    return respond(422, code, f"{path}: {first['msg']}", located, request=request)


def location_in(body: Any, problem: dict[str, Any]) -> list[str | int]:
    """The location of a problem in the body, without the union members that pydantic adds to the path."""
    start, *steps = problem["loc"]
    if start != "body":
        return list(problem["loc"])
    place: list[str | int] = []
    for i, step in enumerate(steps):
        there = isinstance(step, int) if isinstance(body, list) else isinstance(body, dict) and step in body
        if there and isinstance(body, dict) and not isinstance(body[step], dict | list) and steps[i + 1 :][:1]:
            there = steps[i + 1] not in body  # otherwise the union member has the name of one of its fields
        if there:
            body = body[step] if isinstance(body, dict) or step < len(body) else None
        if there or (i == len(steps) - 1 and problem["type"] == "missing"):
            place.append(step)
    return place


def on_http_error(request: Request | None, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "body_malformed" if error.status_code == 400 else "request_refused")
    headers, detail = dict(error.headers or {}), str(error.detail)
    if error.status_code == 404 and request is not None:
        detail = f"There is no endpoint {request.url.path}. The documentation of the API is at /docs."
    if error.status_code == 405 and request is not None and (methods := methods_of(request)):
        headers["Allow"] = ", ".join(sorted(methods))
        detail = f"{request.method} is not allowed here. Allowed: {headers['Allow']}."
    return respond(error.status_code, code, detail, headers=headers, request=request)


def methods_of(request: Request) -> set[str]:
    """All methods of a path. Starlette's own response names the methods of one route only."""
    paths: dict[str, Schema] = request.app.openapi()["paths"]
    matching = (path for path in paths if matches_path(path, request.url.path))
    return {method.upper() for path in matching for method in paths[path]}


def on_disconnect(_request: Request, _error: Exception) -> Response:
    # no client receives this; nothing of the request was stored
    return respond(400, "body_incomplete", "The connection closed before the request was complete.")


def on_unhandled_exception(request: Request | None, _error: Exception) -> Response:
    # RequestLog logs the exception, with the id of the request
    return respond(500, "internal_error", "Internal error. The log of the service has the details.", request=request)


def install(app: FastAPI) -> None:
    app.add_exception_handler(errors.AmendError, on_amend_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_unhandled_exception)
