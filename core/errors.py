"""All errors of requests, as one tree of exceptions. The service maps each class to one HTTP status.

An error has a stable `code`, a message for people, and where it helps the locations in the request (`errors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypedDict

Location = tuple[str | int, ...]


class LocatedError(TypedDict):
    """What is wrong at one location of a request, as the response has it."""

    loc: list[str | int]
    msg: str


class AmendError(Exception):
    """An error that the caller can read and act on."""

    def __init__(self, code: str, detail: str, errors: Sequence[tuple[Location, str]] = ()) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors: list[LocatedError] = [{"loc": list(location), "msg": message} for location, message in errors]

    @classmethod
    def at(cls, location: Location, code: str, message: str) -> Self:
        """An error at one location of the request."""
        path = ".".join(str(step) for step in location) or "body"
        return cls(code, f"{path}: {message}", [(location, message)])


class Malformed(AmendError):
    """A body that cannot be parsed."""


class Invalid(AmendError):
    """Well-formed, but not acceptable."""


class Unauthorized(AmendError):
    """No key, or an unknown one."""


class Forbidden(AmendError):
    """A key without the scope."""


class NotFound(AmendError):
    """It does not exist, or this key may not see it."""


class Conflict(AmendError):
    """At odds with the current state."""


class TooLarge(AmendError):
    """Above a limit on size."""


class Unsupported(AmendError):
    """A content type that is not supported."""


class TooMany(AmendError):
    """More requests than the key's rate limit allows."""

    def __init__(self, code: str, detail: str, seconds: int) -> None:
        super().__init__(code, detail)
        self.seconds = seconds
        """After which the next request is allowed."""


class Unavailable(AmendError):
    """Busy or down; the same request may succeed later."""
