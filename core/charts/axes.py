"""Axes of charts: which values get a tick, how ticks are labelled, and where values are drawn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

HOUR, DAY = 3600, 86400
TIME_STEPS = (
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(HOUR * hours for hours in (1, 2, 3, 6, 12)),
    *(DAY * days for days in (1, 2, 7, 14, 28, 91, 182)),
)
"""Distances between ticks of a time axis, in seconds."""


@dataclass(frozen=True)
class Axis:
    """What an axis shows."""

    label: str = ""
    kind: Literal["number", "count", "percent", "time"] = "number"
    """`count` has whole numbers only, `percent` shows 0.5 as 50 %, and `time` has datetimes or Unix timestamps."""
    include: Sequence[float] = ()
    """Values that the axis covers even if the data does not."""
    maximum: float = math.inf
    """No tick is above this value."""
    log: bool = False


PLAIN = Axis()


@dataclass(frozen=True)
class Scale:
    """Maps the values of an axis to coordinates."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]]
    """Values and their labels."""
    log: bool = False

    def __call__(self, value: float | datetime) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, to_number(value)))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def fit(axis: Axis, values: Iterable[float | datetime], start: float, end: float, tight: bool = False) -> Scale:
    """The scale that covers the values: up to the next tick, or no further than the values if `tight`."""
    low, high = extent([*map(to_number, values), *axis.include], axis.log)
    if axis.kind == "time":
        ticks = time_ticks(low, high)
    elif axis.log:
        ticks = log_ticks(low, high)
    else:
        ticks = round_ticks(low, high, min_step=1.0 if axis.kind == "count" else 0.0)
    ticks = [tick for tick in ticks if tick <= axis.maximum and (not tight or low <= tick <= high)]
    if ticks and not tight:
        low, high = min(ticks[0], low), max(ticks[-1], high)
    return Scale(low, high, start, end, list(zip(ticks, label_ticks(ticks, axis), strict=True)), axis.log)


def to_number(value: float | datetime) -> float:
    return value.timestamp() if isinstance(value, datetime) else value


def extent(values: Sequence[float], log: bool = False) -> tuple[float, float]:
    """Minimum and maximum, with a margin if they are equal."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        return (low / 2, high * 2) if log else (low - (abs(low) * 0.01 or 0.01), high + (abs(high) * 0.01 or 0.01))
    return low, high


def round_ticks(low: float, high: float, min_step: float = 0.0) -> list[float]:
    """About five round numbers that cover the range from `low` to `high`, at least `min_step` apart.

    >>> round_ticks(0.912, 0.958)
    [0.91, 0.92, 0.93, 0.94, 0.95, 0.96]
    >>> round_ticks(0, 1900)
    [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    >>> round_ticks(400, 402, min_step=1.0)
    [400.0, 401.0, 402.0]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(min_step, next(power * m for m in (1, 2, 5, 10) if power * m >= rough))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """
    >>> log_ticks(0.03, 3)
    [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [round(m * 10.0**power, 12) for power in powers for m in ((1, 2, 5) if len(powers) < 5 else (1,))]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = min(i for i, step in enumerate(steps) if step >= high)
    return steps[first : last + 1]


def time_ticks(low: float, high: float) -> list[float]:
    step = next((step for step in TIME_STEPS if (high - low) / step <= 6), math.ceil((high - low) / 6 / DAY) * DAY)
    return [float(i * step) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def label_ticks(ticks: Sequence[float], axis: Axis = PLAIN) -> list[str]:
    """Labels with as many digits as distinguish the ticks.

    >>> label_ticks([0.9, 0.95, 1.0], Axis(kind="percent")), label_ticks([150000.0], Axis(kind="count"))
    (['90 %', '95 %', '100 %'], ['150\\u202f000'])
    >>> label_ticks([2.7274, 2.7276, 2.7278]), label_ticks([0.9, 0.95, 1.0]), label_ticks([123456.0, 123457.0])
    (['2.7274', '2.7276', '2.7278'], ['0.90', '0.95', '1.00'], ['123456', '123457'])
    >>> label_ticks([0.0, 43200.0], Axis(kind="time")), label_ticks([0.0, 86400.0], Axis(kind="time"))
    (['00:00', '12:00'], ['1 Jan', '2 Jan'])
    """
    if not ticks:
        return []
    if axis.kind == "time":
        moments = [datetime.fromtimestamp(tick, UTC) for tick in ticks]
        if any(tick % DAY for tick in ticks):
            return [f"{m:%H:%M}" if m.hour or m.minute or i == 0 else f"{m.day} {m:%b}" for i, m in enumerate(moments)]
        return [f"{m.day} {m:%b}" + (f" {m.year}" if moments[0].year != moments[-1].year else "") for m in moments]
    if axis.kind == "count":
        return [f"{int(tick):,}".replace(",", "\u202f") for tick in ticks]
    if axis.kind == "percent":
        return [f"{label} %" for label in label_ticks([100 * tick for tick in ticks])]
    if axis.log:
        return [f"{tick:g}" for tick in ticks]
    largest = max(map(abs, ticks))
    step = math.floor(math.log10((ticks[-1] - ticks[0]) / (len(ticks) - 1)) + 1e-9) if len(ticks) > 1 else 0
    if largest < 1000:
        return [f"{tick:.{max(0, -step)}f}" for tick in ticks]
    return [f"{tick:.{max(4, math.floor(math.log10(largest)) - step + 1)}g}" for tick in ticks]
