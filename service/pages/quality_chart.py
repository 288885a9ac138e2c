"""The first chart of a model's page: how the updated model does on new examples, before it learns them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from sqlalchemy.orm import Session

from core.charts import Axis, Marker, Point, Series, line_chart
from core.quality.evaluation_windows import LENGTHS
from core.quality.quality_report import (
    VERDICT_DAYS,
    WindowGroup,
    combine,
    compare_with_frozen,
    describe_verdict,
    group,
    leave_out_future,
)
from core.quality.queries import list_windows, outline_windows
from core.tables.models import Model
from core.tables.versions import Version, VersionState

MAX_POINTS = 120
"""Most recent windows that the chart shows."""
MIN_DAYS = 3
"""With fewer days, the chart shows jobs instead."""
LINES: dict[str, tuple[str, str]] = {
    "frozen": ("frozen version", "frozen"),
    "baseline": ("baseline", "third"),
    "champion": ("updated", "adapted"),
}
"""Label and colour of each contestant; the last one is drawn on top."""
BAND = 2.0
"""Half of the error band, in standard errors."""


@dataclass(frozen=True)
class QualityChart:
    """The chart, and one sentence about it."""

    chart: str
    verdict: str
    metric: str
    by: str
    """"day" or "job"."""


def read_quality(
    session: Session, model: Model, metric: str | None, versions: Sequence[Version]
) -> QualityChart | None:
    """The chart of a model; None if fewer than two windows have the metric."""
    windows = leave_out_future(outline_windows(session, model.id))
    chosen = metric if metric and any(metric in w.metrics.get("champion", {}) for w in windows) else "loss"
    shown = [window for window in windows if chosen in window.metrics.get("champion", {})]
    by = "day" if len({window.start.date() for window in shown}) >= MIN_DAYS else "job"
    groups = group(shown, by)[-MAX_POINTS:]
    if len(groups) < 2:
        return None
    recent = max(window.start for window in shown) - LENGTHS["day"] * VERDICT_DAYS
    pair = compare_with_frozen(list_windows(session, model.id, recent), chosen)  # type: ignore[arg-type]
    verdict = describe_verdict(pair, chosen)  # type: ignore[arg-type]
    return QualityChart(draw_quality(groups, chosen, by, versions), verdict, chosen, by)


def draw_quality(groups: Sequence[WindowGroup], metric: str, by: str, versions: Sequence[Version]) -> str:
    """The updated model, the frozen version and the baseline by day or by job. Marks alarms, rejected versions, and
    where another version stands in for the frozen one, because an erasure purged it."""
    metrics = [(found, combine(found.windows)) for found in groups]
    series = []
    for contestant, (label, role) in LINES.items():
        points = [
            make_point(found, values[contestant], metric, by)
            for found, values in metrics
            if metric in values.get(contestant, {})
        ]
        if points:
            line = "solid" if contestant == "champion" else "dashed"
            series.append(Series(label, points, role, line, "filled" if contestant == "champion" else "none"))  # type: ignore[arg-type]
    alarms = [Marker(place(found, by), "alarm", "warn", title="Unusually high loss") for found in groups if found.alarm]
    rejected = [
        Marker(place(found, by), "rejected version", "bad", title=f"Version {version.number} was rejected")
        for version in versions
        if version.state is VersionState.REJECTED
        for found in groups
        if found.first_position <= version.position <= found.last_position
    ]
    restarts = [
        Marker(place(found, by), "frozen restarts", "frozen", title=f"Frozen from here on: version {number}")
        for before, found in pairwise(groups)
        if (number := found.newest("frozen")) is not None and number != before.newest("frozen") is not None
    ]
    x = Axis("" if by == "day" else "ledger position", "time" if by == "day" else "count")
    y = Axis(kind="percent" if metric == "accuracy" else "number")
    label = f"{metric} on new examples by {by}"
    return line_chart(series, x, y, label=label, markers=[*alarms, *rejected, *restarts])


def place(found: WindowGroup, by: str) -> float | datetime:
    """Where a window is on the x axis."""
    return found.start if by == "day" else found.last_position


def make_point(found: WindowGroup, values: dict[str, float], metric: str, by: str) -> Point:
    value, error = values[metric], BAND * values.get(f"{metric}_se", 0.0)
    title = f"{value:.4g} on {found.rows} examples"
    return Point(place(found, by), value, value - error, value + error, title)
