"""Exceptions that the clients raise. All derive from :class:`AmendError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import httpx

if TYPE_CHECKING:
    from amend.responses import Erasure, Job


class FieldProblem(TypedDict):
    """An invalid field of a request: its path, with the index of the example in a batch, and what is wrong."""

    loc: list[str | int]
    msg: str


class AmendError(Exception):
    """Base of all exceptions that the clients raise."""


class UnreachableError(AmendError):
    """The service did not respond: nothing listens at the address, or the connection broke on every attempt."""


class KeyMissing(AmendError):
    """No API key was given or found, or it is not a valid key."""


class PackageMissing(AmendError):
    """The arguments require a package that is not installed."""


class FrameInvalid(AmendError, ValueError):
    """A column of a frame or a table cannot be sent. Nothing was sent."""


class EstimatorUnsupported(AmendError, ValueError):
    """The estimator cannot be imported. Nothing was sent."""

    code = "estimator_unsupported"


class ApiError(AmendError):
    """The service returned an error. ``code`` is a stable identifier; ``errors`` lists the invalid fields."""

    kinds: ClassVar[dict[int, type[ApiError]]] = {}

    def __init__(self, status: int, code: str, detail: str, errors: list[FieldProblem] | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []

    def __init_subclass__(cls, statuses: tuple[int, ...] = ()) -> None:
        ApiError.kinds |= dict.fromkeys(statuses, cls)

    @classmethod
    def of(cls, response: httpx.Response) -> ApiError:
        """The error of the class that corresponds to the status."""
        status = response.status_code
        kind = cls.kinds.get(status, cls)
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            # Not a response of the service, but of a proxy or of a different server.
            reason = response.reason_phrase or "No reason given"
            detail = f"{reason}. The response is not from Amend, but from a proxy or another server."
            return kind(status, f"http_{status}", detail)
        detail = problem.get("detail") or problem.get("title") or "No detail given."
        return kind(status, problem["code"], detail, problem.get("errors"))

    def move_by(self, count: int) -> Self:
        """The same error with indices of examples moved by the ``count`` examples of earlier batches."""
        moved: list[FieldProblem] = [{**error, "loc": move_place(error.get("loc"), count)} for error in self.errors]
        detail = self.detail
        for before, after in zip(self.errors[:1], moved, strict=False):  # the detail contains the first path
            detail = detail.replace(join_place(before.get("loc")), join_place(after["loc"]), 1)
        return type(self)(self.status, self.code, detail, moved)


class Invalid(ApiError, statuses=(400, 413, 415, 422)):
    """The request is invalid."""


class Forbidden(ApiError, statuses=(401, 403)):
    """The API key is unknown or lacks the required scope."""


class NotFound(ApiError, statuses=(404,)):
    """The resource does not exist, or the key may not see it."""


class Conflict(ApiError, statuses=(409,)):
    """The request conflicts with the current state."""


class Unavailable(ApiError, statuses=(502, 503, 504)):
    """The service, or a system that it depends on, is unavailable. Nothing was changed."""


class JobFailed(AmendError):
    """The job failed or was cancelled."""

    def __init__(self, job: Job) -> None:
        reason = f": {job.error.code}: {job.error.detail}" if job.error else ""
        super().__init__(f"Job {job.id} {'was ' * (job.state == 'cancelled')}{job.state}{reason}")
        self.job = job


class ErasureFailed(AmendError):
    """The erasure failed, was refused, or waits for a decision."""

    def __init__(self, erasure: Erasure) -> None:
        parts = (f"; {part.model}: {part.error.code}: {part.error.detail}" for part in erasure.models if part.error)
        words = {
            "held": "is held until it is approved",
            "refused": "was refused",
            "withdrawn": "was withdrawn",
            "unmatched": "matched no example and waits for a decision",
        }
        state = words.get(erasure.state, erasure.state)
        super().__init__(f"Erasure {erasure.id} {state}{''.join(parts)}")
        self.erasure = erasure


def move_place(place: Any, count: int) -> Any:
    """
    >>> move_place(["examples", 3, "x"], 10_000)
    ['examples', 10003, 'x']
    """
    match place:
        case ["examples", int(index), *rest]:
            return ["examples", index + count, *rest]
        case _:
            return place


def join_place(place: Any) -> str:
    """
    >>> join_place(["examples", 3, "x"])
    'examples.3.x'
    """
    return ".".join(str(part) for part in place) if isinstance(place, list) else str(place)
