"""Requests to the service, described without doing any I/O (sans-IO), for both clients in `client`.

A *flow* is a generator. It yields steps (a :class:`Call` to send or a :class:`Pause` to make), receives the outcome of
each, and returns the result. Because a flow does no I/O itself, both clients share it: they differ only in the few
lines that carry out a step. Retries and waiting for jobs are flows as well.
"""

import json as json_module
import uuid
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from amend.errors import ApiError, UnreachableError
from amend.json_encoding import to_json
from amend.responses import Page

T = TypeVar("T")
Params = Mapping[str, str | int | float | bool | None]

HTTP_TOO_MANY = 429
RETRIED_STATUSES = frozenset({HTTP_TOO_MANY, 502, 503, 504})
# A gateway's error does not tell whether the service has carried out the request.
UNCERTAIN_STATUSES = frozenset({502, 504})
MAX_PAUSE = 60.0


class Download:
    """A file that receives a response of any size as it arrives. A retry starts again at the beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, 0
        self.start = file.tell() if file.seekable() else None

    def begin(self) -> None:
        if self.size:
            if self.start is None:
                raise UnreachableError(
                    "The connection broke during the download, and the output cannot be rewound for a retry. "
                    "Write to a file instead."
                )
            self.file.seek(self.start)
            self.file.truncate()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self.file.write(piece)
        self.size += len(piece)


@dataclass(frozen=True)
class Call:
    """One request. Every attempt sends the same."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    download: Download | None = None
    """Receives the content of a successful response; the response itself is then empty."""

    @property
    def adds_examples(self) -> bool:
        return self.method == "POST" and self.path.endswith("/examples")

    @property
    def needs_key(self) -> bool:
        """Whether a retry needs an ``Idempotency-Key`` to be safe.

        Predictions change nothing, and examples are idempotent by their ids. The service answers both faster without a
        key.
        """
        return self.method in ("POST", "PUT") and not (self.adds_examples or self.path.endswith("/predictions"))


@dataclass(frozen=True)
class Pause:
    """Wait for this many seconds."""

    seconds: float


Step = Call | Pause
Outcome = httpx.Response | httpx.TransportError | None
"""Of a call: the response, or the reason why there is none. Of a pause: None."""
Flow = Generator[Step, Outcome, T]


class Run(Generic[T]):
    """A flow in progress: ``step`` is the next step, or None once ``result`` is set."""

    step: Step | None
    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self.flow = flow
        self.send(None)

    def send(self, outcome: Outcome) -> None:
        """Continue with the outcome of the last step."""
        try:
            self.step = self.flow.send(outcome)
        except StopIteration as end:
            self.step, self.result = None, end.value


class Caller:
    """Sends requests, with retries. Both clients, and all `operations`, derive from it."""

    url: str
    pauses: tuple[float, ...]

    def send(self, call: Call) -> Flow[httpx.Response]:
        """Send a request, retry it while the service is unavailable, and return the successful response.

        Retries are safe. A POST or PUT carries the same ``Idempotency-Key`` on every attempt, so the service executes
        it once and repeats its response; see `Call.needs_key` for the exceptions.
        """
        if call.needs_key:
            call = replace(call, headers={**call.headers, "Idempotency-Key": str(uuid.uuid4())})
        maybe_done = False
        for pause in (*self.pauses, None):
            outcome = yield call
            if isinstance(outcome, httpx.Response):
                if call.method == "DELETE" and maybe_done and outcome.status_code == 404:
                    return httpx.Response(204)  # an earlier attempt deleted it
                if pause is None or outcome.status_code not in RETRIED_STATUSES:
                    break
                if outcome.status_code == HTTP_TOO_MANY:
                    if ApiError.of(outcome).code == "quota_exceeded":
                        break  # until tomorrow, or until a model is deleted
                    pause = max(pause, requested_pause(outcome))
                maybe_done |= outcome.status_code in UNCERTAIN_STATUSES
            elif isinstance(outcome, httpx.ReadTimeout | httpx.UnsupportedProtocol):
                # The service is busy, or the address is wrong: a retry would not help.
                raise UnreachableError(f"No response from {self.url}: {outcome}.") from outcome
            elif pause is None:
                raise UnreachableError(f"Cannot reach {self.url}: {outcome}. Is the service running?") from outcome
            else:
                maybe_done |= not isinstance(outcome, httpx.ConnectError)
            yield Pause(pause)
        assert isinstance(outcome, httpx.Response)
        if not outcome.is_success:
            raise ApiError.of(outcome)
        return count_as_accepted(outcome) if call.adds_examples and maybe_done else outcome

    def ask(self, kind: type[T], method: str, path: str, json: Any = None, /, **params: Any) -> Flow[T]:
        """Send a request and decode its response as ``kind``."""
        response = yield from self.send(make_call(method, path, json, params))
        return self.read(kind, response)

    def read(self, kind: type[T], response: httpx.Response) -> T:
        try:
            found = msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"Unexpected response from {self.url} ({error}). Is this an Amend server?"
            raise UnreachableError(message) from error
        return found


def requested_pause(response: httpx.Response) -> float:
    """The seconds that a response asks the client to wait before it retries."""
    header = response.headers.get("Retry-After", "")
    return min(float(header), MAX_PAUSE) if header.isdecimal() else 0.0


def count_as_accepted(response: httpx.Response) -> httpx.Response:
    """The response to a batch of examples that an earlier attempt may have stored, with the counts of that attempt.

    A batch is stored completely or not at all. If the retry finds nothing but duplicates, the attempt whose response
    was lost has stored them, so they count as accepted. Their positions are not known.
    """
    try:
        counts = response.json()
        if counts["accepted"] or not counts["duplicates"]:
            return response
        counts |= {"accepted": counts["duplicates"], "duplicates": 0}
    except (ValueError, KeyError, TypeError):
        return response  # `read` reports an unexpected response
    return httpx.Response(response.status_code, content=json_module.dumps(counts))


@dataclass(frozen=True)
class Pages(Generic[T]):
    """A list that the service returns page by page."""

    item: type[T]
    path: str
    params: Params = field(default_factory=dict)
    limit: int | None = None
    """Items per page when all pages are read; None: the service's default."""

    def page(self, caller: Caller, after: str | None, limit: int | None) -> Flow[Page[T]]:
        page = Page[self.item]  # type: ignore[name-defined]
        return caller.ask(page, "GET", self.path, **self.params, limit=limit, after=after)


def make_call(
    method: str,
    path: str,
    json: Any = None,
    params: Params | None = None,
    content: bytes | None = None,
    content_type: str | None = None,
    accept: str | None = None,
) -> Call:
    """A call with only the parameters and headers that are not None."""
    if json is not None:
        content, content_type = to_json(json), "application/json"
    headers = {"Content-Type": content_type, "Accept": accept}
    return Call(method, path, without_none(params or {}), content, without_none(headers))


def without_none(values: Mapping[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}


def list_of(values: Iterable[str]) -> list[str]:
    """A list of ids or names. A single string is one value, not a sequence of letters.

    >>> list_of("12"), list_of(("1", "2"))
    (['12'], ['1', '2'])
    """
    return [values] if isinstance(values, str) else list(values)


def path(*parts: str | int) -> str:
    """The path of a resource. Ids are chosen by callers and may contain any character.

    >>> path("models", "churn", "examples", "a/1")
    '/v1/models/churn/examples/a%2F1'
    """
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
