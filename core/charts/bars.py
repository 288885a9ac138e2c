"""Bar charts, and two histograms side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from core.charts.axes import PLAIN, Axis, fit
from core.charts.frame import Frame, Key, paint, text, tooltip

ROW = 24.0
MAX_LABEL = 28
"""Characters of a label; the tooltip has the rest."""
LABEL_WIDTH = 12.0
"""Width of a character in the larger type of small screens."""
MAX_BIN_LABELS = 12


class Bar(NamedTuple):
    label: str
    value: float
    role: str = "adapted"
    low: float | None = None
    high: float | None = None
    """`low` and `high` are the ends of the error bar."""


def bar_chart(bars: Sequence[Bar], axis: Axis = PLAIN, *, title: str = "", label: str = "") -> Markup:
    """Horizontal bars, the first on top, which leaves room for long labels. `label` is for screen readers."""
    widest = max((min(len(bar.label), MAX_LABEL) for bar in bars), default=0)
    frame = Frame(720.0, ROW * len(bars), title, left=16.0 + LABEL_WIDTH * widest, x_label=axis.label)
    values = [v for bar in bars for v in (bar.value, bar.low, bar.high) if v is not None]
    scale = fit(axis, [0.0, *values], frame.left, frame.right)
    parts = []
    for value, words in scale.ticks:
        parts.append(f'<path stroke="{paint("line")}" d="M{scale(value):.1f} {frame.top:.1f}V{frame.bottom:.1f}"/>')
        parts.append(text(scale(value), frame.bottom + 20, words, "middle", "x"))
    for i, bar in enumerate(bars):
        y, left, right = frame.top + ROW * i, *sorted((scale(0.0), scale(bar.value)))
        shape = f'x="{left:.1f}" y="{y + 4:.1f}" width="{right - left:.1f}" height="{ROW - 8:.1f}"'
        parts.append(
            f'<rect class="bar" {shape} fill="{paint(bar.role)}">{tooltip(f"{bar.label}: {bar.value:.4g}")}</rect>'
        )
        if bar.low is not None and bar.high is not None:
            d = f"M{scale(bar.low):.1f} {y + ROW / 2:.1f}H{scale(bar.high):.1f}"
            parts.append(f'<path class="error" stroke="{paint("ink")}" stroke-width="2" d="{d}"/>')
        short = bar.label if len(bar.label) <= MAX_LABEL else bar.label[: MAX_LABEL - 1] + "…"
        parts.append(text(frame.left - 8, y + ROW / 2 + 4, short, "end", "y"))
    return frame.draw(parts, label=label)


def histogram_pair(
    bins: Sequence[str], counts: Mapping[str, Sequence[float]], *, label: str = "", max_labels: int = MAX_BIN_LABELS
) -> Markup:
    """Two histograms over the same bins, as fractions of their totals. `counts` has the counts of each by name."""
    roles = dict(zip(counts, ("frozen", "adapted"), strict=True))
    frame = Frame(720.0, 200.0, "", [Key("■", roles[name], name) for name in counts])
    fractions = {name: [count / (sum(many) or 1.0) for count in many] for name, many in counts.items()}
    scale = fit(Axis(kind="percent"), [0.0, *(f for many in fractions.values() for f in many)], frame.bottom, frame.top)
    slot = (frame.right - frame.left) / max(1, len(bins))
    width, parts, places = slot * 0.4, [], []
    for i, (bin, *pair) in enumerate(zip(bins, *fractions.values(), strict=True)):
        start = frame.left + slot * (i + 0.1)
        for j, (name, fraction) in enumerate(zip(counts, pair, strict=True)):
            y = scale(fraction)
            shape = f'x="{start + j * width:.1f}" y="{y:.1f}" width="{width:.1f}" height="{frame.bottom - y:.1f}"'
            title_of = tooltip(f"{name}, {bin}: {100 * fraction:.1f} %")
            parts.append(f'<rect class="bar" {shape} fill="{paint(roles[name])}">{title_of}</rect>')
        if i % math.ceil(len(bins) / max_labels) == 0:
            places.append((start + width, bin))
    return frame.draw(frame.grid(scale), parts, frame.x_labels(places), label=label)
