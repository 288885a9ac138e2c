"""The undocumented attributes of FastAPI and Starlette that this service reads, all of them in one place.

`tests/service/test_framework_internals.py` fails with an explanation if an upgrade changes one of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.routing import compile_path


def query_parameters(route: APIRoute) -> set[str]:
    """Names of the query parameters that an endpoint and its dependencies declare."""
    return {field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)}


def dependency_calls(route: APIRoute) -> Iterator[Callable[..., Any] | None]:
    """The functions that FastAPI calls for the dependencies of an endpoint."""
    return (dependency.call for dependency in route.dependant.dependencies)


def has_body(route: APIRoute) -> bool:
    """Whether an endpoint declares a body that FastAPI parses."""
    return route.body_field is not None


def body_type(route: APIRoute) -> Any:
    """The declared type of the body of an endpoint; None if it has none."""
    return route.body_field.field_info.annotation if route.body_field else None


def required_body_fields(route: APIRoute) -> list[str]:
    """Names of the fields that the body of an endpoint must have."""
    fields = getattr(body_type(route), "model_fields", {})
    return [name for name, field in fields.items() if field.is_required()]


def matches_path(template: str, path: str) -> bool:
    """
    >>> matches_path("/v1/models/{name}", "/v1/models/churn"), matches_path("/v1/models/{name}", "/v1/keys")
    (True, False)
    """
    return compile_path(template)[0].match(path) is not None
