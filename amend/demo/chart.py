"""The demo's chart: the time that a day's changes took, and the accuracy of each digits model over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUNS = ("adapted", "retrained", "frozen")
COLOURS = {"adapted": "#1f77b4", "retrained": "#ff7f0e", "frozen": "#8c8c8c"}
LABELS = {"adapted": "adapted", "retrained": "full retrain", "frozen": "frozen: never updated"}


def draw(
    file: Path,
    day: tuple[str, Mapping[str, float]],
    models: Mapping[str, tuple[Mapping[str, Mapping[int, float]], Sequence[tuple[str, int]]]],
) -> None:
    """Draw the seconds of a day's changes by method, and the accuracy of each digits model over time."""
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
    """One bar per method, the shortest on top."""
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
    """Accuracy of the adapted, the retrained and the frozen model after each change."""
    ticks = {position: x for x, (_, position) in enumerate(steps)}
    for line in reversed(RUNS):
        points = [(ticks[p], 100 * v) for p, v in sorted(lines.get(line, {}).items()) if p in ticks]
        if points:
            style, size = ("o", 10) if line == "retrained" else (".-", 7)
            axes.plot(*zip(*points, strict=True), style, ms=size, mfc="none", color=COLOURS[line], label=LABELS[line])
    axes.set_xticks(range(len(steps)), [fill(change, 9) for change, _ in steps], multialignment="center")
    axes.set_ylabel("holdout accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e5e5", lw=0.7)
    axes.set_axisbelow(True)
