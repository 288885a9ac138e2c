"""Figures of some tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.engine.tables import Report, Row

RED, GREY, ORANGE, BLUE = "tab:red", "grey", "tab:orange", "tab:blue"
WAYS = {"nothing": GREY, "ours": RED, "warm, as good": ORANGE, "Batch": "black"}


def draw(reports: list[Report], folder: Path) -> list[Path]:
    """Draw the figure of the reports with a name, if there is one; returns the paths that were written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    report, rows = reports[-1], [row for each in reports for row in each.rows]
    kind = report.name.split()[0]
    if kind not in DRAWN or not rows:
        return []
    image = DRAWN[kind](plt, rows)
    image.suptitle(report.title if len(reports) == 1 else report.name, fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.name.replace(' ', '-')}.png"
    image.savefig(path, dpi=130)
    plt.close(image)
    return [path]


def draw_anchored(plt: Any, rows: list[Row]) -> Any:
    """Seconds by number of rows, and the bound along the chain of jobs."""
    image, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), constrained_layout=True)
    for change, style in (("random", "-"), ("biased", "--")):
        here = [row for row in rows if row["change"] == change]
        x = [row["rows"] for row in here]
        for key, factor, colour, name in (
            ("ms", 1e-3, RED, "Amend, certified"),
            ("warm", 1.0, ORANGE, "scikit-learn, warm"),
            ("cold", 1.0, GREY, "scikit-learn, cold"),
        ):
            y = [factor * row[key] for row in here]
            left.plot(x, y, style, color=colour, marker="o", markersize=3, label=f"{name} ({change})")
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="CPU seconds")
    left.legend(fontsize=7)
    for row in rows:
        if "bounds" in row:
            right.plot(range(1, 1 + len(row["bounds"])), row["bounds"], color=RED, marker="o", markersize=3)
    right.axhline(0.01, color=GREY, linestyle=":")
    right.set(yscale="log", xlabel="jobs in a row", ylabel="relative bound")
    return image


def draw_wide(plt: Any, rows: list[Row]) -> Any:
    """CPU seconds of each step, ours and the refits."""
    image, axis = plt.subplots(figsize=(7, 3.4), constrained_layout=True)
    for i, (key, colour, name) in enumerate(
        (("cpu", RED, "Amend"), ("warm", ORANGE, "scikit-learn, warm"), ("cold", GREY, "scikit-learn, cold"))
    ):
        places = [n + 0.27 * (i - 1) for n in range(len(rows))]
        axis.bar(places, [row.get(key) or 0.0 for row in rows], 0.25, color=colour, label=name)
    axis.set_xticks(range(len(rows)), [row["step"] for row in rows], fontsize=8)
    axis.set(yscale="log", ylabel="CPU seconds")
    axis.legend(fontsize=8)
    return image


def draw_networks(plt: Any, rows: list[Row]) -> Any:
    """Disagreement with the retrain and row visits for each task, with the floor as a line."""
    image, (above, below) = plt.subplots(2, 1, figsize=(11, 6), constrained_layout=True, sharex=True)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for i, (way, colour) in enumerate(WAYS.items()):
        here = {row["task"]: row for row in rows if row["way"] == way}
        places = [n + 0.2 * (i - 1.5) for n in range(len(tasks))]
        above.bar(places, [here[task]["disagreement"] for task in tasks], 0.19, color=colour, label=way)
        below.bar(places, [here[task]["visits"] for task in tasks], 0.19, color=colour, label=way)
    floors = {row["task"]: row["floor"] for row in rows}
    for n, task in enumerate(tasks):
        above.plot([n - 0.42, n + 0.42], [floors[task]] * 2, color=BLUE, label="floor" if n == 0 else None)
    above.set(yscale="symlog", ylabel="differs from Batch, %")
    below.set(yscale="log", ylabel="row visits")
    below.set_xticks(range(len(tasks)), tasks, fontsize=8)
    above.legend(fontsize=8)
    return image


DRAWN: dict[str, Callable[[Any, list[Row]], Any]] = {
    "anchored": draw_anchored,
    "wide": draw_wide,
    "networks": draw_networks,
}
