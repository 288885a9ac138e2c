"""What all charts have in common: colours, title, legend, grid and labels."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from core.charts.axes import Scale

COLOURS = {
    "adapted": "#0072b2",
    "retrained": "#d55e00",
    "frozen": "#8c8c8c",
    "second": "#009e73",
    "third": "#cc79a7",
    "good": "#1a7f37",
    "warn": "#8a5700",
    "bad": "#b3261e",
    "ink": "#1c2024",
    "quiet": "#5f6b7a",
    "line": "#dfe3e8",
    "card": "#ffffff",
}
"""Colours by role, the same in every chart and distinguishable with colour blindness."""
RIGHT = 24.0
FONT = 12
LINE = 16.0
"""Height of a line of the legend."""
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def paint(role: str) -> str:
    """The colour of a role, which the style sheet of a page may override."""
    return f"var(--{role}, {COLOURS[role]})"


def standalone(chart: str) -> str:
    """A chart as a file: opaque, and with colours that programs without style sheets understand."""
    fixed = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", chart)
    return fixed.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        ">", f'><rect width="100%" height="100%" fill="{COLOURS["card"]}"/>', 1
    )


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    symbol: str
    role: str
    label: str


def break_lines(keys: Sequence[Key], width: float) -> list[list[Key]]:
    """The entries of a legend in lines that fit into a width, even in a wide font.

    >>> [len(line) for line in break_lines([Key("●", "adapted", "updated model")] * 3, 260.0)]
    [2, 1]
    """
    lines: list[list[Key]] = []
    left = 0.0
    for key in keys:
        needed = (len(key.label) + 4) * 0.62 * FONT
        if needed > left:
            lines.append([])
            left = width
        lines[-1].append(key)
        left -= needed
    return lines


class Frame:
    """The parts of a chart around its data: `width` includes them, `plot_height` does not."""

    def __init__(
        self,
        width: float,
        plot_height: float,
        title: str = "",
        keys: Sequence[Key] = (),
        left: float = 56.0,
        x_label: str = "",
        y_label: str = "",
        below: float = 28.0,
    ) -> None:
        self.title = title
        self.labels = (x_label, y_label)
        self.left, self.right = left + (20.0 if y_label else 0.0), width - RIGHT
        self.legend = break_lines([key for key in keys if key.label], self.right - self.left)
        self.top = 12.0 + (22.0 if title else 0.0) + (6.0 + LINE * len(self.legend) if self.legend else 0.0)
        self.bottom = self.top + plot_height
        self.width, self.height = width, self.bottom + below + (18.0 if x_label else 0.0)

    def grid(self, scale: Scale) -> Iterable[str]:
        """Horizontal lines with labels on the left."""
        for value, label in scale.ticks:
            y = scale(value)
            yield f'<path stroke="{paint("line")}" d="M{self.left:.1f} {y:.1f}H{self.right:.1f}"/>'
            yield text(self.left - 8, y + 4, label, "end", "y")

    def x_labels(self, places: Iterable[tuple[float, str]]) -> Iterable[str]:
        for x, label in places:
            yield text(x, self.bottom + 20, label, "middle", "x")

    def draw(self, *parts: Iterable[str], label: str = "") -> Markup:
        """The chart with these parts. `label` describes it for screen readers; by default, the title does."""
        x_label, y_label = self.labels
        middle, centre = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        around = []
        if self.title:
            around.append(text(self.left, 20, self.title, "start", "title", paint("ink")))
        for i, line in enumerate(reversed(self.legend)):
            named = " \u2003".join(
                f'<tspan fill="{paint(key.role)}">{key.symbol}</tspan> {safe(key.label)}' for key in line
            )
            around.append(text(self.left, self.top - 14 - LINE * i, Markup(named), "start", "legend"))
        if x_label:
            around.append(text(middle, self.height - 8, x_label, "middle", "label"))
        if y_label:
            turned = text(0, 0, y_label, "middle", "label")
            around.append(f'<g transform="translate(14 {centre:.1f}) rotate(-90)">{turned}</g>')
        return Markup(
            f'<svg class="chart" width="{self.width:g}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{safe(label or self.title)}" font-family="system-ui, sans-serif" font-size="{FONT}">'
            + "".join(part for made in (around, *parts) for part in made)
            + "</svg>"
        )


def safe(words: str) -> Markup:
    """Escaped, and without characters that XML cannot contain."""
    return words if isinstance(words, Markup) else escape(NOT_IN_XML.sub("\ufffd", words))


def text(x: float, y: float, words: str, anchor: str, kind: str, fill: str = paint("quiet")) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{safe(words)}</text>'


def tooltip(words: str) -> str:
    return f"<title>{safe(words)}</title>" if words else ""
