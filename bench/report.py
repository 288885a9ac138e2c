"""Tables for the terminal and the paper's figures as PNG."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from bench.problems import FRACTIONS, TASKS

if TYPE_CHECKING:
    from bench.paper.methods import Figure, Passes

TITLES = {
    "add": "Add Data",
    "remove": "Remove Data",
    "regularizer": "Change Regularizer",
    "model": "Change Model Class",
}
STYLES = {
    "ours": ("tab:red", "s", "Amend"),
    "paper": ("tab:orange", "^", "K-prior (paper)"),
    "replay": ("tab:blue", "o", "Replay"),
    "ours + 2 passes": ("tab:green", "d", "Amend + 2 passes"),
    "optimal": ("black", "*", "optimal K-prior (limit)"),
    "directions": ("tab:grey", "x", "directions alone"),
    "paper, T = 5": ("tab:brown", "v", "K-prior, temperature 5"),
    "FROMP": ("tab:purple", "P", "FROMP's B"),
    "GEM-like": ("tab:cyan", "h", "GEM-like"),
}
"""Colour, marker and label of methods that depend on the memory."""

LINES = {
    "nothing": ("tab:grey", "no update"),
    "warm refit": ("grey", "warm refit"),
    "ours, real rows": ("tab:red", "Amend, drawn rows"),
    "weight prior": ("tab:olive", "weight prior (Laplace)"),
    "weight prior, L2": ("tab:pink", "weight prior (L2)"),
}
"""Methods that do not depend on the memory."""


def tables(console: Console, figures: list[Figure], passes: list[Passes]) -> None:
    """One table per data set and task; one for the backward passes."""
    for problem in sorted({f.problem for f in figures}):
        for task in TASKS:
            rows = [f for f in figures if f.problem == problem and f.task == task]
            if rows:
                console.print(table(problem, task, rows))
    if passes:
        console.print(passes_table(passes))


def table(problem: str, task: str, rows: list[Figure]) -> Table:
    out = Table(title=f"{problem}: {TITLES[task]}", title_justify="left")
    columns = ("method", "memory", "accuracy", "disagreement %", "weight distance", "bound", "backward k", "seconds")
    for column in columns:
        out.add_column(column, justify="left" if column == "method" else "right")
    for method in dict.fromkeys(f.method for f in rows):
        for fraction in sorted({f.fraction for f in rows if f.method == method}, reverse=True):
            here = [f for f in rows if f.method == method and f.fraction == fraction]
            distances = [f.weight_distance for f in here if f.weight_distance is not None]
            bounds = [f.bound for f in here if f.bound is not None]
            alone = method in LINES or method.startswith(("batch", "weight", "cold"))
            share = "" if alone else f"{100 * fraction:.0f} %"
            out.add_row(
                method,
                share,
                spread([f.accuracy for f in here], 2),
                spread([f.disagreement for f in here], 2),
                spread(distances, 4),
                spread(bounds, 4),
                f"{statistics.mean(f.backward_passes for f in here) / 1000:.1f}",
                f"{statistics.mean(f.seconds for f in here):.2f}",
            )
        out.add_section()
    return out


def spread(values: list[float], digits: int) -> str:
    """Mean and, for several values, standard deviation."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) < 2 or not all(math.isfinite(v) for v in values):
        return mean
    return f"{mean} ± {statistics.stdev(values):.{digits}f}"


def passes_table(passes: list[Passes]) -> Table:
    """Thousands of backward passes, median over seeds; runs that never reached the level count as infinite."""
    out = Table(title="Thousands of backward passes (USPS MLP, 10 % memory, median over seeds)", title_justify="left")
    out.add_column("method")
    for level in (90, 97):
        for task in TASKS:
            out.add_column(f"{level} %\n{TITLES[task]}", justify="right")
    for method in dict.fromkeys(p.method for p in passes):
        cells = []
        for wanted in ("to_90", "to_97"):
            for task in TASKS:
                here: list[int | None] = [getattr(p, wanted) for p in passes if p.method == method and p.task == task]
                middle = statistics.median_low([float("inf") if v is None else v for v in here]) if here else None
                missed = sum(v is None for v in here)
                text = "" if middle is None else "never" if middle == float("inf") else f"{middle / 1000:.1f}"
                cells.append(text + (f" ({missed} never)" if missed and text != "never" else ""))
        out.add_row(method, *cells)
    return out


def draw(figures: list[Figure], folder: Path) -> list[Path]:
    """Draw accuracy by memory size, one panel per task (the paper's Figures 1 and 2), in one file per data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    paths = []
    for problem in sorted({f.problem for f in figures}):
        image, axes = plt.subplots(1, 4, figsize=(17, 3.6), constrained_layout=True)
        for axis, task in zip(axes, TASKS, strict=True):
            rows = [f for f in figures if f.problem == problem and f.task == task]
            batch = [f.accuracy for f in rows if f.method == "batch"]
            if not batch:
                continue
            axis.axhline(statistics.mean(batch), color="grey", label="full retrain (Batch)")
            for method, (colour, name) in LINES.items():
                if level := [f.accuracy for f in rows if f.method == method]:
                    axis.axhline(statistics.mean(level), color=colour, linestyle=":", label=name)
            for method, (colour, marker, label) in STYLES.items():
                points = []
                for fraction in FRACTIONS:
                    here = [f.accuracy for f in rows if f.method == method and f.fraction == fraction]
                    if here:
                        deviation = statistics.stdev(here) if len(here) > 1 else 0.0
                        points.append((100 * fraction, statistics.mean(here), deviation))
                if points:
                    x, y, error = zip(*points, strict=True)
                    axis.errorbar(x, y, error, color=colour, marker=marker, markersize=4, label=label, capsize=2)
            axis.set_xscale("log")
            axis.set_xticks([100, 50, 20, 10, 5, 2], ["100", "50", "20", "10", "5", "2"])
            axis.minorticks_off()
            axis.set_ylim(max(40, min(statistics.mean(batch) - 20, 80)), min(100, statistics.mean(batch) + 3))
            axis.set_title(TITLES[task])
            axis.set_xlabel("memory (% of past data)")
        axes[0].set_ylabel("test accuracy (%)")
        named = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        image.legend(named.values(), named.keys(), fontsize=8, loc="outside right center")
        image.suptitle(problem)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{problem}.png"
        image.savefig(path, dpi=130)
        plt.close(image)
        paths.append(path)
    return paths
