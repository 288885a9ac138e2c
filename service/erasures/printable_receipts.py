"""Receipts and refusals as printable pages. Their texts are in `core.erasure.receipt_text`."""

import html
import re
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.clock import now
from core.erasure import copies, receipt_text
from core.erasure.glossary import select_glossary
from core.erasure.letters import show_date
from core.erasure.receipt_content import report_from
from service.erasures.controller import Sender


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
TEMPLATES.globals["describe_copy"] = copies.describe_copy
TEMPLATES.globals["describe_dates"] = copies.describe_dates


def render_receipt(body: Mapping[str, object], searched: Sequence[str] = ()) -> str:
    """The page of a receipt; `searched` are the identifiers as the caller spells them, which are not stored."""
    place = {name: body[name] for name in ("number", "erasure", "leaf", "key_id", "sha256")}
    template, values = TEMPLATES.get_template("receipt.html"), {**place, "report": report_from(body)}
    plain = template.render(values, searched=[], glossary={})
    return template.render(values, searched=searched, glossary=select_glossary(text_of(plain)))


def render_notices(notices: Sequence[copies.Notice]) -> str:
    """Drafts of notices as letters."""
    return TEMPLATES.get_template("notices.html").render(notices=notices)


def text_of(page: str) -> str:
    """The text of a page, without tags, styles and hashes.

    >>> text_of("<style>b {}</style><p>1&nbsp;<b>leaf</b> <code>ab</code></p>").split()
    ['1', 'leaf']
    """
    visible = re.sub(r"<(style|code)[^>]*>.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", visible))


def render_refusal(body: Mapping[str, object], reference: str | None, sender: Sender) -> str:
    """The letter of a refusal, with the information that GDPR Art. 12(4) requires."""
    frame = {"title": "Your request for erasure was refused", "request": body["erasure"], "reference": reference}
    return render_letter({**body, **frame, "enclosures": (), "acknowledgement": None}, sender, "refusal.html")


def render_letter(body: Mapping[str, object], sender: Sender, template: str = "letter.html") -> str:
    """A letter to a person, with today's date."""
    return TEMPLATES.get_template(template).render(body, sender=sender, today=show_date(now()))
