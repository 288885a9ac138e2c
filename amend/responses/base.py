"""Response types that are not generated from the OpenAPI document."""

from __future__ import annotations

import html
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

MAX_SHOWN_FIELDS, MAX_SHOWN_TEXT = 8, 60
"""Limits of a short representation."""


class Response(msgspec.Struct, frozen=True):
    """Base class of all responses."""

    def to_dict(self) -> dict[str, Any]:
        """The response as plain JSON values, with the names of the REST API."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def __repr__(self) -> str:
        names = [name for name in self.__struct_fields__ if is_scalar(getattr(self, name))]
        shown = [f"{name.removesuffix('_')}={shorten(getattr(self, name))}" for name in names[:MAX_SHOWN_FIELDS]]
        rest = any(getattr(self, name) not in (None, [], {}) for name in self.__struct_fields__ if name not in names)
        more = ["..."] if rest or len(names) > MAX_SHOWN_FIELDS else []
        return f"{type(self).__name__}({', '.join([*shown, *more])})"

    def _repr_html_(self) -> str:
        """A table of the fields, for notebooks."""
        cells = flatten(self.to_dict())
        rows = "".join(
            f"<tr><th>{html.escape(n)}</th><td>{html.escape(shorten(v))}</td></tr>" for n, v in cells.items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"


class Page(Response, Generic[T], frozen=True):
    """One page of a list; ``next`` is the cursor of the next page."""

    items: list[T]
    next: str | None = None


class ResponseList(list[T]):
    """A list of responses."""

    def to_pandas(self) -> Any:
        """A frame with one row for each response, and dotted names for nested fields."""
        return to_frame(self)

    def _repr_html_(self) -> str:
        found: str = to_frame(self)._repr_html_()
        return found


def to_frame(items: Iterable[Any]) -> Any:
    """A pandas frame of responses. Raises PackageMissing if pandas is not installed."""
    from amend.example_batches import require

    rows = [flatten(item.to_dict()) if isinstance(item, Response) else {"value": item} for item in items]
    return require("pandas").DataFrame(rows)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted names.

    >>> flatten({"counts": {"train": 3, "holdout": 1}, "name": "churn"})
    {'counts.train': 3, 'counts.holdout': 1, 'name': 'churn'}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | datetime)


def shorten(value: Any) -> str:
    """A value on one line, truncated.

    >>> shorten("a" * 100) == repr("a" * 59) + "..."
    True
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, str) and len(value) >= MAX_SHOWN_TEXT:
        return repr(value[: MAX_SHOWN_TEXT - 1]) + "..."
    text = repr(value)
    return text if len(text) <= 2 * MAX_SHOWN_TEXT else text[: 2 * MAX_SHOWN_TEXT] + "..."
