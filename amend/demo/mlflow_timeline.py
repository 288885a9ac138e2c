"""The timeline of a model, read from MLflow."""

import time
from dataclasses import dataclass

import httpx

from amend.up.mlflow_authentication import USER

MLFLOW_TIMEOUT_SECONDS = 60.0
"""How long to wait for MLflow to show the last position."""
CHART_QUERY = "workflowType=machine_learning&compareRunsMode=CHART"
"""Opens the chart view of an experiment in MLflow's page for model training."""
METRIC = "accuracy/holdout"
POSITION = "ledger/position"
"""The metric that maps MLflow's steps (version numbers) to positions of the ledger."""


class NotShown(Exception):
    """MLflow does not show the expected position."""


@dataclass(frozen=True)
class Timeline:
    """Holdout accuracy by position, for each run."""

    page: str
    lines: dict[str, dict[int, float]]


class Mlflow:
    """The part of MLflow's REST API that the demo reads."""

    def __init__(self, url: str, password: str) -> None:
        self.url, root = url, f"{url}/api/2.0/mlflow"
        self.http = httpx.Client(auth=(USER, password), base_url=root, timeout=30, verify=False, trust_env=False)

    def timeline(self, model: str, position: int) -> Timeline:
        """Wait until the timeline has reached a position and return it. Raises NotShown after a minute."""
        end = time.monotonic() + MLFLOW_TIMEOUT_SECONDS
        while time.monotonic() < end:
            response = self.http.get("/experiments/get-by-name", params={"experiment_name": f"{model} timeline"})
            if response.is_success:
                id = response.json()["experiment"]["experiment_id"]
                lines = self.lines(id)
                if all(position in lines.get(name, {}) for name in ("adapted", "retrained")):
                    return Timeline(f"{self.url}/#/experiments/{id}/runs?{CHART_QUERY}", lines)
            time.sleep(0.3)
        raise NotShown(f"MLflow did not show position {position} of {model} within {MLFLOW_TIMEOUT_SECONDS:.0f} s.")

    def lines(self, experiment: str) -> dict[str, dict[int, float]]:
        runs = self.http.post("/runs/search", json={"experiment_ids": [experiment]}).raise_for_status().json()
        return {run["info"]["run_name"]: self.line(run["info"]["run_id"]) for run in runs.get("runs", [])}

    def line(self, run: str) -> dict[int, float]:
        """Accuracy by position; if several versions share a position, that of the last."""
        positions = self.history(run, POSITION)
        return {int(positions[step]): value for step, value in sorted(self.history(run, METRIC).items())}

    def history(self, run: str, metric: str) -> dict[int, float]:
        params = {"run_id": run, "metric_key": metric}
        response = self.http.get("/metrics/get-history", params=params).raise_for_status().json()
        return {int(point["step"]): float(point["value"]) for point in response.get("metrics", [])}
