"""What calls of the service can raise. All of it is an :class:`AmendError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import httpx

if TYPE_CHECKING:
    from amend.responses import Erasure, Job


class FieldProblem(TypedDict):
    """One bad place in a request: the way to it, the index of a bad example included, and what is wrong there."""

    loc: list[str | int]
    msg: str


class AmendError(Exception):
    """Base of everything that this client raises."""


class UnreachableError(AmendError):
    """No answer: nobody listens at the address, or the connection broke on every attempt."""


class KeyMissing(AmendError):
    """No key was given and none was found, or what was cannot be one."""


class PackageMissing(AmendError):
    """What was given takes a package that is not installed."""


class EstimatorUnsupported(AmendError, ValueError):
    """An estimator that cannot be imported; nothing was sent."""

    code = "estimator_unsupported"


class ApiError(AmendError):
    """The service refused. ``code`` is a stable word to act upon, ``errors`` names the bad fields."""

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
        """The error of the kind that the status means."""
        status = response.status_code
        kind = cls.kinds.get(status, cls)
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            # Not our service's own words: a proxy, or another server altogether.
            return kind(status, f"http_{status}", response.reason_phrase or "no reason given")
        detail = problem.get("detail") or problem.get("title") or "no detail given"
        return kind(status, problem["code"], detail, problem.get("errors"))

    def move_by(self, count: int) -> Self:
        """The same error, where ``count`` examples went out in earlier batches: places count from the first of all."""
        moved: list[FieldProblem] = [{**error, "loc": move_place(error.get("loc"), count)} for error in self.errors]
        detail = self.detail
        for before, after in zip(self.errors[:1], moved, strict=False):  # the detail tells the first
            detail = detail.replace(join_place(before.get("loc")), join_place(after["loc"]), 1)
        return type(self)(self.status, self.code, detail, moved)


class Invalid(ApiError, statuses=(400, 413, 415, 422)):
    """What was sent is not as it should be."""


class Forbidden(ApiError, statuses=(401, 403)):
    """The key is not known, or may not do this."""


class NotFound(ApiError, statuses=(404,)):
    """There is no such thing, or the key cannot see it."""


class Conflict(ApiError, statuses=(409,)):
    """It does not go with what is there."""


class Unavailable(ApiError, statuses=(502, 503, 504)):
    """The service, or something behind it, is not there; nothing was changed."""


class JobFailed(AmendError):
    """A job that was awaited has failed, or was cancelled."""

    def __init__(self, job: Job) -> None:
        reason = f": {job.error.code}: {job.error.detail}" if job.error else ""
        super().__init__(f"job {job.id} {job.state}{reason}")
        self.job = job


class ErasureFailed(AmendError):
    """An erasure that was awaited has failed, was refused, or is held."""

    def __init__(self, erasure: Erasure) -> None:
        parts = (f"; {part.model}: {part.error.code}: {part.error.detail}" for part in erasure.models if part.error)
        state = "is held: it waits for an approval" if erasure.state == "held" else erasure.state
        super().__init__(f"erasure {erasure.id} {state}{''.join(parts)}")
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
