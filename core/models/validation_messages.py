"""Messages about invalid fields of requests. Those of pydantic are for Python programmers."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from core.models.field_types import NAME, PLAIN

PATTERNS = {
    PLAIN: "must not contain control characters",
    NAME: "must consist of 1 to 63 of the characters a-z, 0-9, - and _",
}
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
    if kind in ("string_too_short", "too_short") and context["min_length"] == 1:
        return "must not be empty"
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


def describe_all(root: Any, problems: Sequence[tuple[Sequence[str | int], Mapping[str, Any]]]) -> list[str]:
    """The messages for problems and their paths in a body of the type ``root``. Misspelt fields bring a suggestion."""
    return [
        describe(problem) + (suggest_field(root, path) if problem["type"] == "extra_forbidden" else "")
        for path, problem in problems
    ]


def suggest_field(root: Any, path: Sequence[str | int]) -> str:
    """The closest name of a field where an unknown one was given, as the end of a message.

    >>> class Inner(BaseModel):
    ...     every: str
    >>> class Outer(BaseModel):
    ...     adapt: Inner | None
    >>> suggest_field(Outer, ["adapt", "evry"]), suggest_field(Outer, ["adopt"]), suggest_field(Outer, ["x"])
    ("; did you mean 'every'?", "; did you mean 'adapt'?", '')
    """
    places = [root]
    for step in path[:-1]:
        if isinstance(step, str):
            fields = [model.model_fields[step] for model in models_in(places) if step in model.model_fields]
            places = [field.annotation for field in fields]
    known = {name for model in models_in(places) for name in model.model_fields}
    return "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(str(path[-1]), known, n=1))


def models_in(annotations: Sequence[Any]) -> Iterator[type[BaseModel]]:
    """The models of annotations, also those in unions and lists."""
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        yield from models_in(get_args(annotation))


def drop_other_forms(problems: Sequence[tuple[Any, Mapping[str, Any]]]) -> list[tuple[Any, Mapping[str, Any]]]:
    """The problems without those of other forms of a field: if a number is too small, it need not be a list instead."""
    fitting = {tuple(path) for path, problem in problems if not is_of_type(problem)}
    return [(path, problem) for path, problem in problems if tuple(path) not in fitting or not is_of_type(problem)]


def is_of_type(problem: Mapping[str, Any]) -> bool:
    """Whether a problem is that the value has another type, or is not one of a few constants."""
    kind = problem["type"]
    return kind == "literal_error" or kind.partition("_")[0] in KINDS and kind not in MESSAGES


def plain(value: object) -> str:
    """Format a limit or a name."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value).strip("'") if str(value).count("'") == 2 else str(value)
