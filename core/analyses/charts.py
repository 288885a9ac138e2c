"""Charts of analyses, for the page and for MLflow."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from core.charts import Axis, Bar, Point, Series, bar_chart, line_chart

MAX_BARS = 15
METRICS = ("loss", "accuracy", "auc", "rmse")


def draw(kind: str, result: dict[str, Any]) -> Markup | None:
    """The chart of a result, or of what is left of it after rounding; None if there is nothing to draw."""
    match kind:
        case "tuning" if result.get("table"):
            return draw_tuning(result)
        case "influence" if result.get("rows"):
            bars = [Bar(name_of(row), row["effect"], *effect_ends(row)) for row in result["rows"][:MAX_BARS]]
            what = "a prediction" if "effects" in result["rows"][0] else "the holdout loss"
            by = result.get("by", "group")
            return bar_chart(
                bars, Axis(f"change of {what}"), label=f"Change of {what} without each {by}, 95 % intervals"
            )
        case "preview" if result.get("before"):
            return draw_preview(result)
        case "cross_validation" if result.get("folds"):
            bars = [Bar(f"fold {fold['fold']}", fold["loss"]) for fold in result["folds"] if "loss" in fold]
            return bar_chart(bars[:MAX_BARS], Axis("loss"), label="Loss of each fold") if bars else None
        case "leave_one_out" if result.get("rows"):
            return draw_leave_one_out(result)
        case "labelling" if result.get("rows"):
            bars = [Bar(name_of(row), row["gain"]) for row in result["rows"][:MAX_BARS]]
            return bar_chart(bars, Axis("information (nats)"), label="Information of each label")
    return None


def draw_leave_one_out(result: dict[str, Any]) -> Markup:
    rows = result["rows"][:MAX_BARS]
    if "suspicion" in rows[0]:
        bars = [Bar(str(row["id"]), row["suspicion"], "bad") for row in rows]
        return bar_chart(bars, Axis("suspicion"), label="Suspicion of the most suspicious labels, from 0 to 1")
    bars = [Bar(name_of(row), row["loss"], "bad") for row in rows]
    return bar_chart(bars, Axis("loss"), label=f"Loss of each {result['by']}, predicted without it")


def draw_preview(result: dict[str, Any]) -> Markup | None:
    both = [(name, result["before"].get(name), result["after"].get(name)) for name in METRICS]
    bars = [
        Bar(f"{name} {when}", value, "frozen" if when == "before" else "adapted")
        for name, before, after in both
        for when, value in (("before", before), ("after", after))
        if value is not None
    ]
    return bar_chart(bars, label="Metrics on the holdout before and after the change") if bars else None


def draw_tuning(result: dict[str, Any]) -> Markup:
    metric, table = result["metric"], result["table"]
    logarithmic = all(entry["value"] > 0 for entry in table) and table[-1]["value"] > 20 * table[0]["value"]
    points = []
    for entry in table:
        error = entry["fold_se"] if metric == "loss" else entry.get(f"{metric}_se", 0.0)
        x, y = math.log10(entry["value"]) if logarithmic else entry["value"], entry[metric]
        points.append(Point(x, y, y - error, y + error, f"{entry['value']:g}: {y:.4g}"))
    name = f"log10 of {result['parameter']}" if logarithmic else result["parameter"]
    label = f"Cross-validated {metric} by {result['parameter']}, with standard errors"
    return line_chart([Series(metric, points)], Axis(name), Axis(metric), label=label)


def name_of(row: dict[str, Any]) -> str:
    return str(row.get("source") or row.get("id") or row.get("subject") or f"input {row.get('index')}")


def effect_ends(row: dict[str, Any]) -> tuple[str, float | None, float | None]:
    """The colour of a bar, and the ends of its 95 % interval."""
    role, error = "bad" if row["effect"] < 0 else "adapted", row.get("effect_se")
    if error is None:
        return role, None, None
    return role, row["effect"] - 1.96 * error, row["effect"] + 1.96 * error
