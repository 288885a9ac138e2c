"""What MLflow shows of a model: its timeline, where it is, and a figure of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import httpx

from amend.up.authentication import USER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MLFLOW_TIMEOUT_SECONDS = 60.0
"""For MLflow to get everything."""
RUNS = ("adapted", "retrained", "frozen")
CHART_QUERY = "workflowType=machine_learning&compareRunsMode=CHART"
"""What MLflow is to show of an experiment: its pages for training, of which the one with the lines."""
METRIC = "accuracy/holdout"
POSITION = "ledger/position"
"""By which steps, that are versions, are told from each other."""
COLOURS = {"adapted": "#1f77b4", "retrained": "#ff7f0e", "frozen": "#8c8c8c"}
LABELS = {"adapted": "adapted", "retrained": "full retrain", "frozen": "frozen: had nothing been done"}


class NotShown(Exception):
    """MLflow does not show what it should."""


@dataclass(frozen=True)
class Timeline:
    """Accuracy by position, of each line."""

    page: str
    lines: dict[str, dict[int, float]]


class Mlflow:
    """MLflow's REST API, as far as the tour looks at it."""

    def __init__(self, url: str, password: str) -> None:
        self.url, root = url, f"{url}/api/2.0/mlflow"
        self.http = httpx.Client(auth=(USER, password), base_url=root, timeout=30, verify=False, trust_env=False)

    def timeline(self, model: str, position: int) -> Timeline:
        """The timeline, once it has come to a position; NotShown if it does not."""
        end = time.monotonic() + MLFLOW_TIMEOUT_SECONDS
        while time.monotonic() < end:
            found = self.http.get("/experiments/get-by-name", params={"experiment_name": f"{model} timeline"})
            if found.is_success:
                id = found.json()["experiment"]["experiment_id"]
                lines = self.lines(id)
                if all(position in lines.get(name, {}) for name in ("adapted", "retrained")):
                    return Timeline(f"{self.url}/#/experiments/{id}/runs?{CHART_QUERY}", lines)
            time.sleep(0.3)
        raise NotShown(f"MLflow does not show position {position} of {model}")

    def lines(self, experiment: str) -> dict[str, dict[int, float]]:
        runs = self.http.post("/runs/search", json={"experiment_ids": [experiment]}).raise_for_status().json()
        return {run["info"]["run_name"]: self.line(run["info"]["run_id"]) for run in runs.get("runs", [])}

    def line(self, run: str) -> dict[int, float]:
        """Accuracy by position: of several versions at one, the last."""
        positions = self.history(run, POSITION)
        return {int(positions[step]): value for step, value in sorted(self.history(run, METRIC).items())}

    def history(self, run: str, metric: str) -> dict[int, float]:
        wanted = {"run_id": run, "metric_key": metric}
        found = self.http.get("/metrics/get-history", params=wanted).raise_for_status().json()
        return {int(metric["step"]): float(metric["value"]) for metric in found.get("metrics", [])}


def draw(
    file: Path,
    day: tuple[str, Mapping[str, float]],
    models: Mapping[str, tuple[Mapping[str, Mapping[int, float]], Sequence[tuple[str, int]]]],
) -> None:
    """What a day of the large model took, by what it was done with; and of each model of digits, its accuracy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(2, len(models), height_ratios=(1, 2.4))
    draw_day(figure.add_subplot(rows[0, :]), *day)
    for i, (name, (lines, steps)) in enumerate(models.items()):
        axes = figure.add_subplot(rows[1, i])
        draw_accuracy(axes, lines, steps)
        axes.set_title(name)
        if i == 0:
            axes.legend(frameon=False, loc="lower left")
    figure.savefig(file)


def draw_day(axes: Axes, title: str, seconds: Mapping[str, float]) -> None:
    """A bar for each way, the shortest on top."""
    names = list(seconds)
    bars = axes.barh(names, list(seconds.values()), color=[COLOURS["adapted"], *["#b9b9b9"] * len(names)][: len(names)])
    axes.bar_label(bars, [f" {value:.2g} s" for value in seconds.values()], fontweight="bold")
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_title(title)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False)


def draw_accuracy(axes: Axes, lines: Mapping[str, Mapping[int, float]], steps: Sequence[tuple[str, int]]) -> None:
    """Accuracy of the adapted, the retrained and the frozen model after each thing that happened."""
    place = {position: x for x, (_, position) in enumerate(steps)}
    for line in reversed(RUNS):
        points = [(place[p], 100 * v) for p, v in sorted(lines.get(line, {}).items()) if p in place]
        if points:
            style, size = ("o", 10) if line == "retrained" else (".-", 7)
            axes.plot(*zip(*points, strict=True), style, ms=size, mfc="none", color=COLOURS[line], label=LABELS[line])
    axes.set_xticks(range(len(steps)), [fill(what, 9) for what, _ in steps], multialignment="center")
    axes.set_ylabel("accuracy on held-out images, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e5e5", lw=0.7)
    axes.set_axisbelow(True)
