"""Models and examples of tests of the clients' operations."""

from __future__ import annotations

from typing import Any

from tests.worker.deployment import DIM, problem

QUIET = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}, "memory": {"fraction": 0.5}}
TARGET = {"kind": "binary"}
INPUT = {"kind": "vector", "dim": DIM}


def columns(n: int, first: int = 0, **more: Any) -> dict[str, Any]:
    x, y = problem(n, seed=first)
    return {"id": [f"e{first + i}" for i in range(n)], "x": x, "y": y, **more}
