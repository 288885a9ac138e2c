"""Page templates, and how they format times, numbers and metrics."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from core.clock import now
from core.kprior.model.spec import loss_of
from core.tracking.formats import (
    describe_input,
    describe_part,
    describe_target,
    duration,
    figure,
    percent,
    plural,
    show_metric,
    spell_metric,
)
from core.tracking.links import model_page

if TYPE_CHECKING:
    from service.pages.sign_in import Visitor

UNITS = ((365.25 * 86400, "year"), (30.4 * 86400, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))
"""Units with their length in seconds."""


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


def format_days_until(due: datetime, present: datetime) -> str:
    """How many calendar days are left, so that a due date in a month is not "in 29 days" a second later.

    >>> format_days_until(datetime(2026, 3, 31, 9), datetime(2026, 3, 1, 12))
    'in 30 days'
    >>> format_days_until(datetime(2026, 3, 2, 1), datetime(2026, 3, 1, 23))
    'tomorrow'
    >>> format_days_until(datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 9))
    'today'
    """
    days = (due.date() - present.date()).days
    return {0: "today", 1: "tomorrow"}.get(days, f"in {days} days")


def show_days_until(due: datetime) -> Markup:
    """The number of days until a due date, with the exact time as a tooltip."""
    words = format_days_until(due, now())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        due.isoformat(), f"{due:%Y-%m-%d %H:%M:%S} UTC", words
    )


def show_moment(moment: datetime) -> Markup:
    """A relative time such as "2 hours ago", with the exact time as a tooltip."""
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    words = format_relative(moment, now())
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), exact, words)


def show_date(moment: datetime) -> Markup:
    """An absolute date such as "2026-03-01", with the exact time as a tooltip."""
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), exact, exact[:10])


def show_minute(moment: datetime) -> Markup:
    """An absolute time such as "2026-03-01 09:00 UTC"."""
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), f"{moment:%Y-%m-%d %H:%M} UTC")


def show_count(number: int) -> str:
    """
    >>> show_count(1234567) == "1\\u202f234\\u202f567"
    True
    """
    return f"{number:,}".replace(",", "\u202f")


def show_ratio(spent: float, instead: float) -> str:
    """
    >>> show_ratio(2.0, 26.0), show_ratio(2.0, 5.0), show_ratio(2.0, 1.0), show_ratio(2.0, 0.01)
    ('13×', '2.5×', '0.5×', 'less than 0.1×')
    """
    ratio = instead / spent if spent > 0 else 1.0
    return "less than 0.1×" if ratio < 0.1 else f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def unbroken(text: str) -> str:
    """Keep a number and its unit on one line."""
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
    "days_until": show_days_until,
    "date": show_date,
    "minute": show_minute,
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
    "name_metric": lambda name: (spelled := spell_metric(name))[:1].upper() + spelled[1:],
}


def render(template: str, visitor: Visitor | None, **values: Any) -> str:
    """Render a page for a visitor."""
    return TEMPLATES.get_template(template).render(visitor=visitor, **values)
