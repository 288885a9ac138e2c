"""Pictures of versions: how well they predict, and what they cost next to full retrains."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from core.kprior.model.spec import Target, values_of
from core.tables.figures import ReliabilityBin
from core.tables.versions import Version, VersionKind
from core.tracking.lineage import Lineage, main_metric
from core.versions.privacy_rounding import coarse

COLOURS = {"adapted": "#0072b2", "retrained": "#d55e00", "frozen": "#8c8c8c"}
"""The same in every picture, and told apart by everybody."""
LABELS = {"adapted": "adapted, in service", "retrained": "full retrain", "frozen": "frozen (version 1)"}
OVERVIEW = ("cost_against_retrain.png", "adapted_against_retrained.png")
"""Pictures of a model, version by version, rather than of one version."""
MAX_CLASS_NAMES = 20
"""Classes whose names and counts are still readable in a chart."""


def of_version(version: Version, lineage: Lineage, target: Target) -> dict[str, bytes]:
    """The pictures of one version, by file name. `lineage` ends with it; `target` is what it predicts."""
    return {name: png(figure) for name, figure in (overview(lineage) | of_predictions(version, target)).items()}


def overview(lineage: Lineage) -> dict[str, Figure]:
    """Pictures of a model, version by version."""
    cost_name, quality_name = OVERVIEW
    made = {cost_name: cost(lineage)} if lineage.line else {}
    if lineage.versions and (name := main_metric(lineage.versions[-1].metrics)):
        made[quality_name] = quality(lineage, name)
    return made


def of_predictions(version: Version, target: Target) -> dict[str, Figure]:
    """Pictures of how a version predicts the holdout."""
    drawn, made = version.evaluation or {}, {}
    if drawn.get("reliability"):
        made["reliability.png"] = reliability(version, drawn["reliability"], target["kind"])
    if drawn.get("coverage"):
        made["coverage.png"] = reliability(version, drawn["coverage"], target["kind"])
    if counts := drawn.get("confusion"):
        made["confusion.png"] = confusion(version, counts, target)
    return made


def quality(lineage: Lineage, name: str) -> Figure:
    """A metric of the model in service, of full retrains, and of the first version, by version."""
    figure, axes = new_figure(f"{lineage.model.name}: {name} on the holdout")
    lines: dict[str, list[tuple[int, Any]]] = {
        "frozen": [(v.number, coarse((v.evaluation or {}).get("frozen", {})).get(name)) for v in lineage.line],
        "adapted": [(v.number, coarse(v.metrics).get(name)) for v in lineage.line],
        "retrained": [(v.number, coarse(v.metrics).get(name)) for v in lineage.trained],
    }
    for which, points in lines.items():
        known = [(x, y) for x, y in points if y is not None]
        if known:
            style, size = ("o", 9) if which == "retrained" else (".-", 5)
            axes.plot(*zip(*known, strict=True), style, ms=size, color=COLOURS[which], label=LABELS[which], mfc="none")
    axes.set(xlabel="version", ylabel=name)
    axes.legend(frameon=False)
    return figure


def cost(lineage: Lineage) -> Figure:
    """Seconds of each version, and in all, next to what full retrains take."""
    figure, (each, total) = sheets(f"{lineage.model.name}: seconds of work", 2)
    kinds = {"adapted": [v for v in lineage.line if v.kind is VersionKind.ADAPTED], "retrained": lineage.trained}
    for which, versions in kinds.items():
        if versions:
            points = [(v.number, max(v.cost.get("seconds", 0.0), 1e-4)) for v in versions]
            each.plot(*zip(*points, strict=True), "o", ms=5, color=COLOURS[which], label=LABELS[which])
    each.set(yscale="log", xlabel="version", ylabel="seconds, each version")
    each.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    each.yaxis.set_major_formatter("{x:g}")
    each.yaxis.set_minor_formatter(NullFormatter())
    each.legend(frameon=False)
    x = [v.number for v in lineage.line]
    spent = np.cumsum([v.cost.get("seconds", 0.0) for v in lineage.line])
    unspent = np.cumsum([t.cost.get("seconds", 0.0) if (t := lineage.retrain_of(v)) else 0.0 for v in lineage.line])
    total.plot(x, unspent, "--", color=COLOURS["retrained"], label="retraining each time (estimated)")
    total.plot(x, spent, "-", color=COLOURS["adapted"], label="as it was done")
    total.fill_between(x, spent, unspent, where=list(unspent >= spent), color=COLOURS["adapted"], alpha=0.1, lw=0)
    if spent[-1] > 0 and len(x) > 1:
        total.set_title(f"retraining each time: {unspent[-1] / spent[-1]:.1f} times as long", fontsize=10)
    total.set(xlabel="version", ylabel="seconds, in all", ylim=(0, None))
    total.legend(frameon=False, loc="upper left")
    return figure


def reliability(version: Version, bins: Sequence[ReliabilityBin], kind: str) -> Figure:
    """How often the model is right when it says that it is sure; of numbers, how often they are within an interval."""
    what = "coverage" if kind == "number" else "reliability"
    figure, axes = new_figure(f"Version {version.number}: {what} on the holdout", (5.2, 5))
    axes.plot([0, 1], [0, 1], "--", color="#8c8c8c", lw=1, label="perfectly calibrated")
    x, y = [b["confidence"] for b in bins], [b["accuracy"] for b in bins]
    largest = max(b["count"] for b in bins)
    axes.plot(x, y, "-", color=colour(version), lw=1)
    sizes = [20 + 180 * b["count"] / largest for b in bins]
    axes.scatter(x, y, s=sizes, color=colour(version), alpha=0.8, clip_on=False, label="holdout (area: how many)")
    words = {
        "binary": ("predicted probability of 1", "share of 1"),
        "number": ("level of the interval", "share within"),
    }
    xlabel, ylabel = words.get(kind, ("probability of the predicted class", "share that is right"))
    axes.set(
        xlabel=xlabel,
        ylabel=ylabel,
        xlim=(-0.02, 1.02),
        ylim=(-0.02, 1.02),
        xticks=np.linspace(0, 1, 6),
        yticks=np.linspace(0, 1, 6),
    )
    axes.legend(frameon=False)
    return figure


def confusion(version: Version, counts: list[list[int]], target: Target) -> Figure:
    """True against predicted classes."""
    matrix = np.array(counts, float)
    fraction = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    size = min(10.0, 3.5 + 0.35 * len(matrix))
    figure, axes = new_figure(f"Version {version.number}: confusion on the holdout", (size, size))
    axes.imshow(fraction, cmap="Blues" if version.kind is VersionKind.ADAPTED else "Oranges", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    axes.grid(False)
    if len(matrix) <= MAX_CLASS_NAMES:
        names = [str(value)[:12] for value in values_of(target)]
        # as they are: between two dollars matplotlib would read a formula, and stop at one that it does not know
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0, parse_math=False)
        axes.set_yticks(range(len(names)), names, parse_math=False)
        for i, j in np.ndindex(matrix.shape):
            if matrix[i, j]:
                white = "white" if fraction[i, j] > 0.6 else "black"
                axes.text(j, i, f"{int(matrix[i, j])}", ha="center", va="center", color=white, fontsize=9)
    return figure


def colour(version: Version) -> str:
    return COLOURS["adapted" if version.kind is VersionKind.ADAPTED else "retrained"]


def new_figure(title: str, size: tuple[float, float] = (8, 4.5)) -> tuple[Figure, Axes]:
    figure, axes = sheets(title, 1, size)
    return figure, axes[0]


def sheets(title: str, many: int, size: tuple[float, float] = (11, 4.5)) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, dpi=110)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    # in inches; letting matplotlib find out takes as long as drawing
    width, height = size
    figure.subplots_adjust(
        left=0.75 / width, right=1 - 0.2 / width, bottom=0.6 / height, top=1 - 0.65 / height, wspace=1.7 / width
    )
    made = []
    for i in range(many):
        axes = figure.add_subplot(1, many, i + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e5e5e5", lw=0.7)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        made.append(axes)
    return figure, made


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def svg(figure: Figure) -> str:
    """As a part of a page; text stays text."""
    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "amend"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]
