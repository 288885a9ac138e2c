"""Messages about invalid fields of requests. Those of pydantic are for Python programmers."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from core.models.field_types import NAME, PLAIN

PATTERNS = {PLAIN: "must not contain control characters", NAME: "must consist of 1-63 of the characters a-z 0-9 - _"}
"""Messages by regular expression."""

MOMENT = "must be a time such as 2025-03-01T09:00:00Z"
MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "unknown field",
    "finite_number": "must be finite",
    "union_tag_not_found": "`{discriminator}` is missing",
    "union_tag_invalid": "`{discriminator}` must be one of {expected_tags}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} item(s)",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
}
KINDS = {
    "int": "must be an integer",
    "float": "must be a number",
    "string": "must be text",
    "bool": "must be true or false",
    "list": "must be a list",
    "dict": "must be an object",
    "model": "must be an object",
    "datetime": MOMENT,
}
"""Messages by the first word of pydantic's error type: `int_type`, `int_parsing`, `int_from_float`."""


def describe(problem: Mapping[str, Any]) -> str:
    """The message for one of the `errors()` of pydantic's ValidationError.

    >>> describe({"type": "missing", "msg": "Field required"})
    'is missing'
    >>> describe({"type": "greater_than", "msg": "Input should be greater than 0", "ctx": {"gt": 0.0}})
    'must be greater than 0'
    >>> near = {"discriminator": "'kind'", "tag": "hubber", "expected_tags": "'log', 'huber'"}
    >>> describe({"type": "union_tag_invalid", "msg": "", "ctx": near})
    "`kind` must be one of 'log', 'huber'; did you mean 'huber'?"
    """
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    if kind in ("value_error", "assertion_error"):
        return str(problem["msg"]).partition(", ")[2]
    message = MESSAGES.get(kind) or KINDS.get(kind.partition("_")[0])
    if message is None:
        return str(problem["msg"])
    message = message.format_map({name: plain(value) for name, value in context.items()})
    if kind == "union_tag_invalid":
        known = re.findall(r"'([^']*)'", context["expected_tags"])
        message += "".join(
            f"; did you mean {near!r}?" for near in difflib.get_close_matches(context["tag"], known, n=1)
        )
    return message


def plain(value: object) -> str:
    """Format a limit or a name."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).strip("'") if str(value).count("'") == 2 else str(value)
