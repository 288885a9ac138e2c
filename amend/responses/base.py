"""What all answers share: their base, a page of a list, and why something failed."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """Base of all answers."""


class Page(Answer, Generic[T], frozen=True):
    """One page of a list; ``next`` is the cursor of the page after it."""

    items: list[T]
    next: str | None = None


class Failure(Answer, frozen=True):
    """Why a job failed, or an erasure in one model."""

    code: str
    detail: str
