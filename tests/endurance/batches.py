"""Numbered batches of examples, sent through HTTP, and what the service then holds of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

DIM = 16


@dataclass(frozen=True)
class Batch:
    """`size` examples from number `first` on."""

    first: int
    size: int

    @property
    def ids(self) -> list[str]:
        return [f"e{i}" for i in range(self.first, self.first + self.size)]

    def body(self, backwards: bool = False) -> bytes:
        numbers = range(self.first, self.first + self.size)
        rows = [{"id": f"e{i}", "x": [i] * DIM, "y": i % 2, "subject": f"s{i % 97}"} for i in numbers]
        return json.dumps({"examples": rows[::-1] if backwards else rows}).encode()


SPEC: dict[str, Any] = {"input": {"kind": "vector", "dim": DIM}}


def post(api: httpx.Client, model: str, body: bytes, key: str | None = None) -> httpx.Response:
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
    return api.post(f"/v1/models/{model}/examples", content=body, headers=headers)


def listed(api: httpx.Client, model: str) -> list[dict[str, Any]]:
    """All examples in force, page by page."""
    items: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = api.get(f"/v1/models/{model}/examples", params={"limit": 1000} | ({"after": after} if after else {}))
        found = page.raise_for_status().json()
        items += found["items"]
        after = found["next"]
    return items
