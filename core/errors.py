"""Everything that can be wrong with a request, as one tree. The service turns each branch into one HTTP status.

An error carries a stable `code`, words for a person, and where they help the places in the request (`errors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypedDict

Place = tuple[str | int, ...]


class BadPlace(TypedDict):
    """One bad place in a request, as its answer names it."""

    loc: list[str | int]
    msg: str


class AmendError(Exception):
    """Something that the caller can read and act on."""

    def __init__(self, code: str, detail: str, errors: Sequence[tuple[Place, str]] = ()) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors: list[BadPlace] = [{"loc": list(place), "msg": message} for place, message in errors]

    @classmethod
    def at(cls, place: Place, code: str, message: str) -> Self:
        """An error of one place in the request."""
        where = ".".join(str(step) for step in place) or "body"
        return cls(code, f"{where}: {message}", [(place, message)])


class Malformed(AmendError):
    """Bytes that are not what they claim to be."""


class Invalid(AmendError):
    """Well-formed, but not acceptable."""


class Unauthorized(AmendError):
    """No key, or none that we know."""


class Forbidden(AmendError):
    """A key without the scope."""


class NotFound(AmendError):
    """No such thing, or none that this key may see."""


class Conflict(AmendError):
    """At odds with what is there."""


class TooLarge(AmendError):
    """Above a limit on size."""


class Unsupported(AmendError):
    """A content type that is not read here."""


class TooMany(AmendError):
    """More requests than a key may send."""

    def __init__(self, code: str, detail: str, seconds: int) -> None:
        super().__init__(code, detail)
        self.seconds = seconds
        """Until the next may come."""


class Unavailable(AmendError):
    """Busy or down; the same request may succeed later."""
