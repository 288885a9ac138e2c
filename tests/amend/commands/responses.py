"""Complete responses of the service, for tests of commands without a service."""

from __future__ import annotations

from typing import Any

AT = "2026-03-01T09:00:00Z"
SHOWN = ["2026-03-01", "09:00Z"]
"""The same in a table."""

MODEL: dict[str, Any] = {
    "name": "churn",
    "input": {"kind": "vector", "dim": 2},
    "target": {"kind": "binary"},
    "architecture": {"kind": "linear", "degree": 1},
    "regularizer": {"kind": "l2", "delta": 5.0},
    "loss": {"kind": "log"},
    "training": {"seed": 0},
    "policy": {"holdout": 0.1, "adapt": {"after_changes": 100}},
    "counts": {"train": 900, "holdout": 100, "removed": 0, "quarantined": 0, "unlabelled": 0},
    "head": 1000,
    "champion": None,
    "pending": 3,
    "created_at": AT,
    "held": None,
    "withdrawn": False,
}


def held(reason: str) -> dict[str, Any]:
    return {"since": AT, "reason": reason, "by": "k1"}


def job(state: str, **more: Any) -> dict[str, Any]:
    positions = {"from_position": 3, "to_position": 9}
    times = {"created_at": AT, "started_at": None, "finished_at": None}
    rest = {"progress": 0.4, "message": "", "attempts": 1, "error": None, "version": None}
    return {"id": "j1", "model": "churn", "kind": "adapt", "state": state, **positions, **times, **rest, **more}


def version(number: int, **more: Any) -> dict[str, Any]:
    kind = {"version": number, "kind": "adapted", "parent": None, "state": "champion"}
    kind |= {"position": 9, "removals_position": 9}
    cost = {"backward_passes": 1.0, "data_passes": 1.0, "seconds": 0.5}
    memory = {"size": 10, "fraction": 0.1}
    rest = {"method": "kprior", "metrics": {}, "certificate": None, "sha256": None, "mlflow": None, "created_at": AT}
    rest |= {"spec": {}, "quarantined": 0}
    return {**kind, **rest, "memory": memory, "cost": cost, **more}


def part(state: str = "received", **more: Any) -> dict[str, Any]:
    empty = {"version": None, "bound": None, "method": None, "error": None}
    return {"model": "churn", "examples": 3, "state": state, **empty, **more}


def erasure(state: str = "received", *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    times = {"received_at": AT, "due_at": "2026-04-01T09:00:00Z", "completed_at": None}
    rest = {"overdue": False, "late": False, "trail": [], "extension": None, "refusal": None, "receipt": None}
    rest |= {"repeats": None, "tokens": ["ab12"]}
    return {"id": "e1", "state": state, **times, **rest, "models": list(parts), **more}
