"""Models with examples of a person, and erasure requests for them."""

from __future__ import annotations

import uuid
from typing import Any

import httpx

from core.erasure import state_changes
from core.models import catalog
from tests.service.expect import add, rows
from tests.stack import Stack


def somebody() -> str:
    """A person whom no other test knows."""
    return f"person-{uuid.uuid4().hex}"


def model_with_person(stack: Stack, api: httpx.Client, person: str, count: int = 2) -> str:
    """A model with six examples, the first of them about a person."""
    name = stack.model()
    add(api, name, [{**row, "subject": person} if i < count else row for i, row in enumerate(rows(6))])
    return name


def ask(api: httpx.Client, person: str, **more: Any) -> dict[str, Any]:
    """Ask for a person to be erased."""
    answer = api.post("/v1/erasures", json={"subject": person, **more})
    assert answer.status_code == 202, answer.text
    erasure: dict[str, Any] = answer.json()
    return erasure


def erase_nobody(api: httpx.Client, person: str | None = None) -> dict[str, Any]:
    """A request for a person whom nobody knows, completed by a decision."""
    done: dict[str, Any] = act(api, ask(api, person or somebody())["id"], "approve").raise_for_status().json()
    return done


def open_erasure(stack: Stack, api: httpx.Client, **more: Any) -> dict[str, Any]:
    """An erasure that waits for a worker."""
    person = somebody()
    model_with_person(stack, api, person)
    return ask(api, person, **more)


def fail_erasure(stack: Stack, api: httpx.Client) -> dict[str, Any]:
    """An erasure whose job has failed, as far as the database can tell."""
    erasure = open_erasure(stack, api)
    with stack.database.write() as session:
        model = catalog.find(session, erasure["models"][0]["model"], None, lock=True)
        state_changes.fail(session, model.id, {"code": "solver_failed", "detail": "no luck"})
    return show(api, erasure["id"])


def show(api: httpx.Client, id: str) -> dict[str, Any]:
    shown: dict[str, Any] = api.get(f"/v1/erasures/{id}").raise_for_status().json()
    return shown


def act(api: httpx.Client, id: str, what: str, **body: Any) -> httpx.Response:
    return api.post(f"/v1/erasures/{id}/{what}", json=body or None)
