"""Templates, and the words that they use for moments, numbers and figures."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from core.database import now
from core.kprior.model.spec import loss_of
from core.tracking.descriptions import describe_input, describe_part, describe_target, duration, figure, percent, plural
from core.tracking.links import model_page

if TYPE_CHECKING:
    from service.pages.visitors import Visitor

UNITS = ((365.25 * 86400, "year"), (30.4 * 86400, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
"""In seconds."""


def format_relative(moment: datetime, present: datetime) -> str:
    """
    >>> from datetime import timedelta
    >>> noon = datetime(2026, 3, 1, 12)
    >>> format_relative(noon - timedelta(seconds=3), noon), format_relative(noon - timedelta(hours=25), noon)
    ('just now', '1 day ago')
    >>> format_relative(noon + timedelta(minutes=3), noon), format_relative(noon + timedelta(seconds=20), noon)
    ('in 3 minutes', 'in a moment')
    """
    seconds = (present - moment).total_seconds()
    size, unit = next((pair for pair in UNITS if abs(seconds) >= pair[0]), (0, ""))
    if not size:
        return "just now" if seconds >= 0 else "in a moment"
    many = f"{int(abs(seconds) / size)} {unit}{'s' if abs(seconds) >= 2 * size else ''}"
    return f"{many} ago" if seconds > 0 else f"in {many}"


def show_moment(moment: datetime) -> Markup:
    """A moment in plain words; the exact one is shown on request."""
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    words = format_relative(moment, now())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), exact, words)


def show_count(number: int) -> str:
    """
    >>> show_count(1234567) == "1\\u202f234\\u202f567"
    True
    """
    return f"{number:,}".replace(",", "\u202f")


def show_metric(value: float | None, name: str | None) -> str:
    """
    >>> show_metric(0.9425, "accuracy"), show_metric(0.25, "loss"), show_metric(None, "loss")
    ('94.2 %', '0.250', '–')
    """
    if value is None:
        return "–"
    return percent(value) if name in ("accuracy", "disagreement") else figure(value)


def show_ratio(spent: float, instead: float) -> str:
    """
    >>> show_ratio(2.0, 26.0), show_ratio(2.0, 5.0), show_ratio(2.0, 2.0)
    ('13 x', '2.5 x', 'nothing yet')
    """
    ratio = instead / spent if spent > 0 else 0.0
    return "nothing yet" if ratio < 1.05 else f"{ratio:.0f} x" if ratio >= 10 else f"{ratio:.1f} x"


def unbroken(text: str) -> str:
    """A number that is never on another line than its unit."""
    return text.replace(" ", "\u00a0")


TEMPLATES = Environment(
    loader=PackageLoader("service.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "moment": show_moment,
    "count": show_count,
    "percent": lambda share: unbroken(percent(share)),
    "duration": lambda seconds: unbroken(duration(seconds)),
    "figure": figure,
}
TEMPLATES.globals |= {
    "show_metric": show_metric,
    "show_ratio": show_ratio,
    "describe_input": describe_input,
    "describe_part": describe_part,
    "loss_of": loss_of,
    "describe_target": describe_target,
    "model_page": model_page,
    "plural": plural,
}


def render(template: str, visitor: Visitor | None, **values: Any) -> str:
    """A page, as this visitor may see it."""
    return TEMPLATES.get_template(template).render(visitor=visitor, **values)
