"""Response types that are not generated from the OpenAPI document."""

from __future__ import annotations

from typing import Any, Generic, TypedDict, TypeVar

import msgspec

T = TypeVar("T")


class Response(msgspec.Struct, frozen=True):
    """Base class of all responses."""


class Page(Response, Generic[T], frozen=True):
    """One page of a list; ``next`` is the cursor of the next page."""

    items: list[T]
    next: str | None = None


class ExportedExample(TypedDict):
    """A subject's example: in force, or removed and not deleted yet."""

    model: str
    id: str
    x: Any
    y: int | float | str
    weight: float
    split: str
    position: int
    in_force: bool
