"""Line charts, curves such as ROC and reliability, and sparklines."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from markupsafe import Markup

from core.charts.axes import PLAIN, Axis, Scale, fit
from core.charts.frame import Frame, Key, paint, tooltip

SIZE = (720.0, 220.0)
SQUARE = (440.0, 340.0)
"""Width, and height of the plot."""
SPARKLINE_SIZE = (120.0, 28.0)
MAX_DOTS = 80
"""Maximum number of dots on a line; more would hide the line."""


class Point(NamedTuple):
    x: float | datetime
    y: float
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the ends of the error band at this point."""
    title: str = ""
    """Shown as a tooltip."""
    area: float | None = None
    """Size of the dot, from 0 to 1."""


@dataclass(frozen=True)
class Series:
    """A line, dots, or both, with an error band where the points have one. `role` is a key of `COLOURS`."""

    label: str
    points: Sequence[Point]
    role: str = "adapted"
    line: Literal["solid", "dashed", "none"] = "solid"
    dots: Literal["filled", "open", "none"] = "filled"


@dataclass(frozen=True)
class Marker:
    """An event: a vertical line at `x`, or a cross if `y` is given."""

    x: float | datetime
    label: str
    """Entry of the legend; markers with the same label share one."""
    role: str = "bad"
    y: float | None = None
    title: str = ""


def line_chart(
    series: Sequence[Series],
    x: Axis = PLAIN,
    y: Axis = PLAIN,
    *,
    title: str = "",
    label: str = "",
    markers: Sequence[Marker] = (),
    size: tuple[float, float] = SIZE,
    tight: bool = True,
) -> Markup:
    """Series over a common axis. The x axis ends with the data if `tight`, otherwise with the next tick.

    `label` describes the chart for screen readers if it has no title.
    """
    frame = Frame(*size, title, legend(series, markers), x_label=x.label, y_label=y.label)
    points = [point for one in series for point in one.points]
    across = fit(x, [p.x for p in points] + [m.x for m in markers], frame.left, frame.right, tight)
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    heights += [m.y for m in markers if m.y is not None]
    up = fit(y, heights, frame.bottom, frame.top)
    bottom_labels = frame.x_labels((across(value), words) for value, words in across.ticks)
    drawn = (part for one in series for part in draw_series(one, across, up))
    marks = (draw_marker(marker, across, up) for marker in markers)
    return frame.draw(frame.grid(up), bottom_labels, drawn, marks, label=label)


def curve(
    series: Sequence[Series], x_label: str, y_label: str, *, title: str = "", diagonal: str = "", label: str = ""
) -> Markup:
    """Curves in the unit square, such as ROC, precision and recall, or reliability. `diagonal` labels the diagonal."""
    if diagonal:
        ends = [Point(0.0, 0.0), Point(1.0, 1.0)]
        series = [Series(diagonal, ends, "frozen", line="dashed", dots="none"), *series]
    axes = (Axis(name, include=(0.0, 1.0)) for name in (x_label, y_label))
    return line_chart(series, *axes, title=title, label=label, size=SQUARE)


def legend(series: Sequence[Series], markers: Sequence[Marker]) -> list[Key]:
    """An entry for each series and each kind of marker; none if there is only one series."""
    symbols = {"solid": "●", "dashed": "╌", "none": "●"}
    keys = [Key("○" if one.dots == "open" else symbols[one.line], one.role, one.label) for one in series]
    kinds = dict.fromkeys((("│" if m.y is None else "✕"), m.role, m.label) for m in markers)
    keys += [Key(*kind) for kind in kinds]
    return keys if len(keys) > 1 else []


def draw_series(series: Series, across: Scale, up: Scale) -> Iterator[str]:
    colour = paint(series.role)
    yield f'<g class="line {series.role}" stroke="{colour}" fill="none">'
    band = [p for p in series.points if p.low is not None and p.high is not None]
    if band:
        edge = [(across(p.x), up(p.high or 0.0)) for p in band] + [(across(p.x), up(p.low or 0.0)) for p in band[::-1]]
        yield f'<path class="band" stroke="none" fill="{colour}" fill-opacity="0.15" d="{path_of(edge)}Z"/>'
    if series.line != "none":
        dashes = ' stroke-dasharray="5 4"' if series.line == "dashed" else ""
        yield f'<path stroke-width="2"{dashes} d="{path_of((across(p.x), up(p.y)) for p in series.points)}"/>'
    if series.dots != "none" and (series.line == "none" or len(series.points) <= MAX_DOTS):
        # an open dot has a tooltip in its middle as well
        look = 'stroke-width="2.5" pointer-events="all"' if series.dots == "open" else f'fill="{colour}" stroke="none"'
        for p in series.points:
            radius = (5.0 if series.dots == "open" else 3.0) if p.area is None else math.sqrt(6 + 58 * p.area)
            place = f'cx="{across(p.x):.1f}" cy="{up(p.y):.1f}" r="{radius:.1f}"'
            yield f"<circle {place} {look}>{tooltip(p.title)}</circle>"
    yield "</g>"


def draw_marker(marker: Marker, across: Scale, up: Scale) -> str:
    x, title = across(marker.x), tooltip(marker.title or marker.label)
    if marker.y is not None:
        y = up(marker.y)
        d = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
    else:
        d = f"M{x:.1f} {up.start:.1f}V{up.end:.1f}"
    return f'<path class="marker" stroke="{paint(marker.role)}" stroke-width="2" d="{d}">{title}</path>'


def path_of(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))


def sparkline(values: Sequence[float]) -> str:
    """The SVG path of a line through the values.

    >>> sparkline([0.5, 1.0])
    'M2.0 26.0L118.0 2.0'
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    width, height = SPARKLINE_SIZE
    steps = [2 + i * (width - 4) / (len(values) - 1) for i in range(len(values))]
    # a constant line is drawn in the middle
    span = (high - low) or 1.0
    heights = [height / 2 if high == low else height - 2 - (v - low) / span * (height - 4) for v in values]
    return path_of(zip(steps, heights, strict=True))
