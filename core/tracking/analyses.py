"""Runs of analyses in MLflow: rounded aggregates and charts, and nothing that names an example or a person."""

import re
from typing import Any

from mlflow.entities import Metric, Run

from core.analyses.charts import draw
from core.analyses.rounding import round_result
from core.charts import standalone
from core.tables.analyses import Analysis
from core.tables.jobs import Job
from core.tracking import runs
from core.tracking.gateway import Gateway

CHART = "analysis.svg"
NAME = re.compile(r"[^A-Za-z0-9_\-. ]")
"""Characters that MLflow does not accept in the name of a metric."""


def publish(gateway: Gateway, run: Run, job: Job, analysis: Analysis, prefix: str) -> None:
    """Write the rounded result of an analysis to the run of its job."""
    rounded = round_result(analysis.kind, analysis.result or {})
    params = {"analysis": analysis.kind, "position": analysis.position, "analysed_version": analysis.version}
    params |= {name: rounded.get(name) for name in ("parameter", "metric", "best", "suggested", "by")}
    when = runs.milliseconds(job.finished_at or job.created_at)
    known = run.data.metrics
    new = [Metric(n, v, when, step) for n, v, step in metrics_of(rounded) if n not in known]
    gateway.client.log_batch(run.info.run_id, new, runs.new_params(run, params), synchronous=True)
    chart = draw(analysis.kind, rounded)
    if chart is not None:
        runs.fill_figures(gateway, run.info.run_id, {CHART: standalone(chart).encode()}, prefix)


def metrics_of(rounded: dict[str, Any]) -> list[tuple[str, float, int]]:
    """Name, value and step of all metrics; the steps of a tuning are its values in ascending order.

    >>> metrics_of({"before": {"loss": 0.5}, "table": [{"value": 1.0, "loss": 0.4}, {"value": 2.0, "loss": 0.3}]})
    [('before/loss', 0.5, 0), ('tuning/value', 1.0, 0), ('tuning/loss', 0.4, 0), ('tuning/value', 2.0, 1), \
('tuning/loss', 0.3, 1)]
    """
    groups: list[tuple[str, dict[str, Any], int]]
    groups = [(name, rounded[name], 0) for name in ("before", "after", "metrics") if name in rounded]
    groups += [("tuning", entry, i) for i, entry in enumerate(rounded.get("table", []))]
    groups += [("fold", fold, fold["fold"]) for fold in rounded.get("folds", [])]
    groups += [("effect", {NAME.sub("_", row["source"]): row["effect"]}, 0) for row in rounded.get("rows", [])]
    return [
        (f"{group}/{name}", float(value), step)
        for group, values, step in groups
        for name, value in values.items()
        if runs.finite(value)
    ]
