"""Charts as the numbers of an SVG, drawn by a template: they need no script, and take their colours from the style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.pages.rendering import show_count, show_metric

Point = tuple[float, float]
SPARKLINE_SIZE = (120.0, 28.0)
WIDTH, HEIGHT = 720.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 24.0, 12.0, 28.0
METRICS_UP_TO_ONE = ("accuracy", "auc", "f1", "r2")
"""Metrics that are 1 at the most."""
MAX_DOTS = 80
"""On one line: more would hide it."""


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Line:
    """One line, of a kind that the style has a colour for."""

    kind: str
    path: str
    dots: Sequence[Dot]


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Lines over a common axis."""

    name: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM


def sparkline(values: Sequence[float]) -> str:
    """The path of a line of values, from left to right.

    >>> sparkline([0.5, 1.0])
    'M2.0 26.0L118.0 2.0'
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    width, height = SPARKLINE_SIZE
    steps = [2 + i * (width - 4) / (len(values) - 1) for i in range(len(values))]
    # a line that never moves lies in the middle
    span = (high - low) or 1.0
    heights = [height / 2 if high == low else height - 2 - (v - low) / span * (height - 4) for v in values]
    return path_of(zip(steps, heights, strict=True))


def path_of(points: Iterable[Point]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))


def draw_lines(name: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> Chart | None:
    """A metric over positions of the ledger, a line for each kind; None if there is nothing to draw."""
    points = [point for line in lines.values() for point in line]
    if len({x for x, _ in points}) < 2:
        return None
    x_low, x_high = extent(x for x, _ in points)
    xs = round_ticks(x_low, x_high, min_step=1.0)  # there is no half of a position
    highest = 1.0 if name in METRICS_UP_TO_ONE else math.inf
    ys = [y for y in round_ticks(*extent(y for _, y in points)) if y <= highest]
    y_low, y_high = min(ys[0], *(y for _, y in points)), max(ys[-1], *(y for _, y in points))

    def place(x: float, y: float) -> Point:
        across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    drawn = []
    for kind, line in lines.items():
        if line:
            placed = [place(x, y) for x, y in line]
            titles = [f"{kind}: {show_metric(y, name)} at position {x}" for x, y in line]
            dots = [Dot(x, y, title) for (x, y), title in zip(placed, titles, strict=True)]
            joined = "" if kind == "retrained" else path_of(placed)
            drawn.append(Line(kind, joined, dots if not joined or len(dots) <= MAX_DOTS else ()))
    across = [Tick(place(x, y_low)[0], show_count(int(x))) for x in xs if x_low <= x <= x_high]
    up = [Tick(place(x_low, y)[1], label) for y, label in zip(ys, label_ticks(ys, name), strict=True)]
    return Chart(name, drawn, across, up)


def label_ticks(ticks: Sequence[float], name: str = "") -> list[str]:
    """Ticks in as many digits as tell one from the next; accuracy in percent, as everywhere.

    >>> label_ticks([0.9, 0.95, 1.0], "accuracy")
    ['90 %', '95 %', '100 %']
    >>> label_ticks([2.7274, 2.7276, 2.7278]), label_ticks([0.9, 0.95, 1.0]), label_ticks([123456.0, 123457.0])
    (['2.7274', '2.7276', '2.7278'], ['0.90', '0.95', '1.00'], ['123456', '123457'])
    """
    if name == "accuracy":
        return [f"{label} %" for label in label_ticks([100 * tick for tick in ticks])]
    largest = max(map(abs, ticks))
    step = math.floor(math.log10((ticks[-1] - ticks[0]) / (len(ticks) - 1)) + 1e-9) if len(ticks) > 1 else 0
    if largest < 1000:
        return [f"{tick:.{max(0, -step)}f}" for tick in ticks]
    return [f"{tick:.{max(4, math.floor(math.log10(largest)) - step + 1)}g}" for tick in ticks]


def extent(values: Iterable[float]) -> tuple[float, float]:
    """The smallest and the largest, a little apart at least."""
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        margin = abs(low) * 0.01 or 0.01
        return low - margin, high + margin
    return low, high


def round_ticks(low: float, high: float, max_ticks: int = 5, min_step: float = 0.0) -> list[float]:
    """Round numbers from below the lowest to above the highest value, so far apart at least.

    >>> round_ticks(0.912, 0.958)
    [0.91, 0.92, 0.93, 0.94, 0.95, 0.96]
    >>> round_ticks(0, 1900)
    [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    >>> round_ticks(400, 402, min_step=1.0)
    [400.0, 401.0, 402.0]
    """
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(min_step, next(power * m for m in (1, 2, 5, 10) if power * m >= rough))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
