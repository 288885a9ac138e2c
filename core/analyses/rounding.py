"""Rounded aggregates of analyses, the only part of them that MLflow gets: it never deletes what it is sent.

Metrics are rounded like those of versions, so that no single row can be told from them. Ids of examples, people and
groups of few examples are left out.
"""

from __future__ import annotations

from typing import Any

from core.quality.erased_records import MIN_ROUNDED_ROWS
from core.versions.privacy_rounding import coarse, round_to_step, significant, step_above

SMALLEST_ERROR = 1e-12


def round_result(kind: str, result: dict[str, Any]) -> dict[str, Any]:
    """What may be published of a result, in the same structure.

    >>> rows = [{"source": "a", "examples": 120, "effect": -0.0213, "effect_se": 0.0042}]
    >>> rows += [{"source": "b", "examples": 3, "effect": 0.1, "effect_se": 0.01}]
    >>> round_result("influence", {"by": "source", "rows": rows})["rows"]
    [{'source': 'a', 'examples': 100, 'effect': -0.02, 'effect_se': 0.005}]
    >>> round_result("influence", {"by": "subject", "rows": rows})
    {'by': 'subject', 'rows': []}
    """
    match kind:
        case "preview":
            return {name: dict(coarse(result[name])) for name in ("before", "after")}
        case "leave_one_out":
            return {"metrics": dict(coarse(result["metrics"]))}
        case "cross_validation":
            folds = [
                {"fold": fold["fold"], **coarse({name: value for name, value in fold.items() if name != "fold"})}
                for fold in result["folds"]
                if fold["rows"] >= MIN_ROUNDED_ROWS
            ]
            return {"metrics": dict(coarse(result["metrics"])), "folds": folds}
        case "tuning":
            same = {name: result[name] for name in ("parameter", "metric", "best", "suggested")}
            return {**same, "table": [round_entry(entry) for entry in result["table"]]}
        case "influence":
            rows = [round_effect(row) for row in result["rows"] if may_show(result, row)]
            return {"by": result["by"], "rows": rows}
    return {}


def round_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """A row of a tuning's table."""
    metrics = {name: value for name, value in entry.items() if name not in ("value", "fold_se")}
    return {"value": entry["value"], **coarse(metrics), "fold_se": significant(entry["fold_se"], 1)}


def may_show(result: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a row is about a source of many examples, and about the holdout."""
    return result["by"] == "source" and row["examples"] >= MIN_ROUNDED_ROWS and row.get("effect_se") is not None


def round_effect(row: dict[str, Any]) -> dict[str, Any]:
    error = max(row["effect_se"], SMALLEST_ERROR)
    return {
        "source": row["source"],
        "examples": int(significant(float(row["examples"]), 1)),
        "effect": round_to_step(row["effect"], step_above(2 * error)),
        "effect_se": step_above(error),
    }
