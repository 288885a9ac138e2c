"""What is wrong with a part of a request, in words of ours: the library that checks speaks to programmers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.models.fields import NAME, PLAIN

FORMS = {PLAIN: "must not have control characters", NAME: "must be 1-63 of a-z 0-9 - _"}
"""What texts must look like."""

MOMENT = "must be a time, as 2025-03-01T09:00:00Z"
WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "finite_number": "must be finite",
    "union_tag_not_found": "`{discriminator}` is missing",
    "union_tag_invalid": "`{discriminator}` must be one of {expected_tags}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be {le} or less",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": "must have {min_length} or more",
    "too_long": "must have {max_length} at most",
    "string_too_short": "must have {min_length} character(s) or more",
    "string_too_long": "must have {max_length} characters at most",
}
KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "string": "must be text",
    "bool": "must be true or false",
    "list": "must be a list",
    "dict": "must be an object",
    "model": "must be an object",
    "datetime": MOMENT,
}
"""By the first word of the library's name for a problem: `int_type`, `int_parsing`, `int_from_float`."""


def describe(problem: Mapping[str, Any]) -> str:
    """A problem that pydantic found, as one of its `errors()`.

    >>> describe({"type": "missing", "msg": "Field required"})
    'is missing'
    >>> describe({"type": "greater_than", "msg": "Input should be greater than 0", "ctx": {"gt": 0.0}})
    'must be above 0'
    """
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "string_pattern_mismatch":
        return FORMS.get(context["pattern"], f"must match {context['pattern']}")
    if kind in ("value_error", "assertion_error"):
        return str(problem["msg"]).partition(", ")[2]
    words = WORDS.get(kind) or KINDS.get(kind.partition("_")[0])
    if words is None:
        return str(problem["msg"])
    return words.format_map({name: plain(value) for name, value in context.items()})


def plain(value: object) -> str:
    """A limit, or a name, as one would write it."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).strip("'") if str(value).count("'") == 2 else str(value)
