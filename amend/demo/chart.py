"""The demo's chart: accuracy in the week, what each change took, and the holdout loss after each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from amend.demo.churn_tour import Story
from amend.demo.screen import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from amend.responses import QualityWindow

ADAPTED, OTHERS, REJECTED = "#1f77b4", "#b0b0b0", "#d62728"


def draw(file: Path, story: Story, title: str) -> None:
    """Draw the three panels into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    assert story.retrain is not None
    assert story.refit is not None
    figure = Figure(figsize=(11, 6.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontweight="bold")
    rows = figure.add_gridspec(2, 2, height_ratios=(1.5, 1))
    draw_week(figure.add_subplot(rows[0, 0]), story.week)
    took = {item.what: item.seconds for item in story.measured}
    others = {"full retrain": story.retrain.seconds, "scikit-learn, warm refit of a day": story.refit.seconds}
    draw_seconds(figure.add_subplot(rows[0, 1]), took, others)
    draw_losses(figure.add_subplot(rows[1, :]), story.losses, story.rejected)
    figure.savefig(file)


def draw_week(axes: Axes, week: Sequence[QualityWindow]) -> None:
    """Accuracy on each day's new customers, of the model that is adapted every day and of the one that never is."""
    names = [f"{window.from_:%a}" for window in week]
    lines = {
        "adapted every day": (ADAPTED, [window.champion["accuracy"] for window in week]),
        "never updated": (OTHERS, [window.frozen["accuracy"] if window.frozen else None for window in week]),
    }
    for name, (colour, values) in lines.items():
        shares = [float("nan") if value is None else 100 * value for value in values]
        axes.plot(range(len(week)), shares, "o-", color=colour, lw=2, label=name)
    axes.set_xticks(range(len(week)), names)
    axes.set_ylabel("accuracy, %")
    axes.set_title("Accuracy on each day's new customers,\nbefore the model learns them")
    axes.legend(frameon=False, loc="center right")
    tidy(axes)


def draw_seconds(axes: Axes, took: Mapping[str, float], others: Mapping[str, float]) -> None:
    """One bar per change, and one for each of the alternatives."""
    names, values = [*took, *others], [*took.values(), *others.values()]
    bars = axes.barh(names, values, color=[ADAPTED] * len(took) + [OTHERS] * len(others))
    axes.bar_label(bars, [f" {seconds(value)}" for value in values])
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_title("Seconds from the request to the result")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False)


def draw_losses(axes: Axes, losses: Sequence[tuple[str, float]], rejected: tuple[str, float] | None) -> None:
    """The holdout loss of each champion, and of the version that did not become one."""
    names = [name for name, _ in losses]
    axes.plot(range(len(losses)), [loss for _, loss in losses], "o-", color=ADAPTED, lw=2)
    if rejected is not None:
        place = names.index(rejected[0]) + 0.5
        axes.plot([place], [rejected[1]], "X", ms=11, color=REJECTED)
        words = "bad batch: rejected, discarded"
        axes.annotate(words, (place, rejected[1]), (10, -4), textcoords="offset points", color=REJECTED)
    axes.set_xticks(range(len(losses)), [fill(name, 13) for name in names], multialignment="center", fontsize=9)
    axes.set_ylabel("loss")
    axes.set_title("Holdout loss of the version that serves predictions")
    axes.margins(y=0.15)
    tidy(axes)


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e5e5", lw=0.7)
    axes.set_axisbelow(True)
