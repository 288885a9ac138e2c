"""Helpers for tests of the contract: errors of the promised shape, examples, pages of lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx

JSON = {"Content-Type": "application/json"}
METHODS = ("get", "post", "patch", "put", "delete")


def refused(answer: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem in an answer, which has the promised shape, status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    own = {"error"} if answer.url.path.startswith("/v2") else set()
    assert problem.keys() - {"errors"} == {"type", "title", "status", "detail", "code"} | own
    assert problem["status"] == status
    assert code is None or problem["code"] == code, problem
    assert "Traceback" not in answer.text
    return problem


def location(problem: dict[str, Any]) -> list[str | int]:
    """Where in the request the first error is."""
    loc: list[str | int] = problem["errors"][0]["loc"]
    return loc


def rows(count: int, prefix: str = "e") -> list[dict[str, Any]]:
    """Examples of a model of two numbers and a yes/no target, both classes among them."""
    return [{"id": f"{prefix}{i}", "x": [i / 8, i % 3], "y": int(i % 4 > 1), "split": "train"} for i in range(count)]


def add(api: httpx.Client, name: str, examples: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Add examples that are fine."""
    answer = api.post(f"/v1/models/{name}/examples", json={"examples": examples}, **options)
    assert answer.status_code == 201, answer.text
    added: dict[str, Any] = answer.json()
    return added


def listed(api: httpx.Client, name: str) -> list[dict[str, Any]]:
    """All examples in force, page by page."""
    return list(paged(api, f"/v1/models/{name}/examples", limit=1000))


def paged(api: httpx.Client, path: str, limit: int = 2, **query: Any) -> Iterator[dict[str, Any]]:
    """The items of a list, by its cursor."""
    after: dict[str, Any] = {}
    while True:
        page = api.get(path, params={"limit": limit, **query, **after}).raise_for_status().json()
        assert len(page["items"]) <= limit
        yield from page["items"]
        if page["next"] is None:
            return
        after = {"after": page["next"]}


def soon(check: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether something becomes true within a few seconds."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Operation(NamedTuple):
    """An entry of the OpenAPI document."""

    method: str
    path: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.described["operationId"])


def operations(api: httpx.Client) -> list[Operation]:
    """Everything that the service says it can do."""
    paths = api.get("/openapi.json").raise_for_status().json()["paths"]
    return [Operation(m, path, entry[m]) for path, entry in paths.items() for m in METHODS if m in entry]
