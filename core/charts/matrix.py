"""Matrices of counts, such as confusion matrices."""

from collections.abc import Sequence

from markupsafe import Markup

from core.charts.frame import Frame, paint, text, tooltip

MAX_NAMES = 20
"""Rows whose names and counts are still readable."""


def matrix_chart(
    counts: Sequence[Sequence[int]],
    names: Sequence[str],
    axes: tuple[str, str],
    *,
    title: str = "",
    role: str = "adapted",
) -> Markup:
    """A square matrix whose cells are shaded by their fraction of the row. `axes` labels columns and rows."""
    cell = max(8.0, min(40.0, 720.0 / len(counts)))
    short = [name[:12] for name in names] if len(counts) <= MAX_NAMES else []
    longest = max(map(len, short), default=0)
    turned, side = longest > 4, cell * len(counts)
    left, below = 16.0 + 7.0 * longest, 14.0 + 7.0 * longest if turned else 28.0
    width = max(left + 44.0 + side, 320.0)
    frame = Frame(width, side, title, left=left, x_label=axes[0], y_label=axes[1], below=below)
    frame.right = frame.left + side
    parts = []
    for i, row in enumerate(counts):
        y = frame.top + cell * i
        for j, count in enumerate(row):
            x, fraction = frame.left + cell * j, count / max(sum(row), 1)
            shape = f'x="{x:.1f}" y="{y:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            shade = f'fill="{paint(role)}" fill-opacity="{fraction:.3f}" stroke="{paint("line")}"'
            parts.append(f"<rect {shape} {shade}>{tooltip(f'{count}')}</rect>")
            if short and count:
                ink = paint("card" if fraction > 0.6 else "ink")
                parts.append(text(x + cell / 2, y + cell / 2 + 4, str(count), "middle", "count", ink))
        if short:
            parts.append(text(frame.left - 8, y + cell / 2 + 4, short[i], "end", "y"))
            x = frame.left + cell * (i + 0.5)
            name = text(0, 4, short[i], "end", "x") if turned else text(0, 20, short[i], "middle", "x")
            turn = " rotate(-90)" if turned else ""
            parts.append(
                f'<g transform="translate({x:.1f} {frame.bottom + (8 if turned else 0):.1f}){turn}">{name}</g>'
            )
    return frame.draw(parts)
