"""Receipts and refusals as printable pages. Their texts are in `core.erasure.receipt_text`."""

from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.erasure import receipt_text
from core.erasure.report import report_from


def show_minute(moment: str) -> str:
    """
    >>> show_minute("2026-03-01T09:00:00Z")
    '2026-03-01 09:00 UTC'
    """
    return moment[:16].replace("T", " ") + " UTC"


TEMPLATES = Environment(
    loader=PackageLoader("service.erasures"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["minute"] = show_minute
TEMPLATES.globals["words"] = receipt_text


def render_receipt(body: Mapping[str, object]) -> str:
    """The page of a receipt."""
    chain = {name: body[name] for name in ("number", "erasure", "sha256", "previous")}
    return TEMPLATES.get_template("receipt.html").render(report=report_from(body), **chain)


def render_refusal(body: Mapping[str, object]) -> str:
    """The letter of a refusal, with the information that GDPR Art. 12(4) requires."""
    return TEMPLATES.get_template("refusal.html").render(body)
