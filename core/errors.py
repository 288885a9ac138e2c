"""The errors of requests, as one tree of exceptions. The service maps each class to one HTTP status.

An error has a stable `code`, a message for people and, where it helps, locations in the request (`errors`).
"""

from collections.abc import Sequence
from typing import Self, TypedDict

Location = tuple[str | int, ...]


class LocatedError(TypedDict):
    """An error at one location of a request, as in the response."""

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
    """A well-formed request whose content is not acceptable."""


class Unauthorized(AmendError):
    """No API key, or an invalid one."""


class Forbidden(AmendError):
    """A key that lacks the required scope."""


class NotFound(AmendError):
    """An object that does not exist or that the key may not see."""


class Conflict(AmendError):
    """A request that conflicts with the current state."""


class TooLarge(AmendError):
    """A request that exceeds a size limit."""


class Unsupported(AmendError):
    """A content type that is not supported."""


class TooMany(AmendError):
    """More than the key's rate limit or quota allows."""

    def __init__(self, code: str, detail: str, seconds: int | None = None) -> None:
        super().__init__(code, detail)
        self.seconds = seconds
        """Seconds until the request is allowed; None if waiting does not help."""


class Unavailable(AmendError):
    """A part of the system that is busy or down; the same request may succeed later."""
