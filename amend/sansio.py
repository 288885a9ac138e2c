"""Calls of the service without input or output of their own (sans-IO), for both clients of `client`.

A *flow* is a generator that yields what has to be done (a :class:`Call` to send, a :class:`Pause` to take), is sent
what came of it, and returns the answer. It does nothing itself, so one description serves both clients: they differ in
the few lines that carry out a step. Repeating what was lost and waiting for jobs are flows, too.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload
from urllib.parse import quote

import httpx
import msgspec

from amend.errors import ApiError, UnreachableError
from amend.json_values import to_json
from amend.responses import Page

P = ParamSpec("P")
T = TypeVar("T")
Params = Mapping[str, str | int | float | bool | None]

# A proxy's way of saying that the service behind it is not there just now, and the service's own; too many requests.
HTTP_TOO_MANY = 429
RETRIED_STATUSES = frozenset({HTTP_TOO_MANY, 502, 503, 504})
MAX_PAUSE = 60.0


class Download:
    """Where an answer of any size is written to as it comes; from the beginning again, if an attempt broke off."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, 0
        self.start = file.tell() if file.seekable() else None

    def begin(self) -> None:
        if self.size:
            if self.start is None:
                raise UnreachableError("the answer broke off, and what came of it cannot be taken back")
            self.file.seek(self.start)
            self.file.truncate()
        self.size = 0

    def write(self, piece: bytes) -> None:
        self.file.write(piece)
        self.size += len(piece)


@dataclass(frozen=True)
class Call:
    """One request, as it goes out on every attempt."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    download: Download | None = None
    """Takes the content of a successful answer, which then has none."""


@dataclass(frozen=True)
class Pause:
    """Do nothing for so many seconds."""

    seconds: float


Step = Call | Pause
Outcome = httpx.Response | httpx.TransportError | None
"""Of a call: its answer, or why there is none. Of a pause: nothing."""
Flow = Generator[Step, Outcome, T]


class Run(Generic[T]):
    """A flow on its way: the step to take, or None and the answer."""

    step: Step | None
    answer: T

    def __init__(self, flow: Flow[T]) -> None:
        self.flow = flow
        self.send(None)

    def send(self, outcome: Outcome) -> None:
        """Go on with what came of the step."""
        try:
            self.step = self.flow.send(outcome)
        except StopIteration as end:
            self.step, self.answer = None, end.value


class Runner(Protocol):
    """A client that waits."""

    def run(self, flow: Flow[T], /) -> T: ...

    def walk(self, pages: Pages[T], /) -> Iterator[T]: ...


class AsyncRunner(Protocol):
    """A client that is awaited."""

    async def run(self, flow: Flow[T], /) -> T: ...

    def walk(self, pages: Pages[T], /) -> AsyncIterator[T]: ...


class ClientMethod(Generic[P]):
    """What is made of a method for both clients, with the method's own name, words and signature."""

    def __init__(self, make: Callable[Concatenate[Any, P], Any]) -> None:
        self.make = make
        functools.update_wrapper(self, make)
        self.__signature__ = describe(make)

    def __call__(self, client: Any, *arguments: P.args, **options: P.kwargs) -> Any:
        """As a method called on the class; ``help`` shows nothing of what cannot be called."""
        return self.__get__(client, type(client))(*arguments, **options)

    def __get__(self, client: Any, owner: type) -> Any:
        raise NotImplementedError


class operation(ClientMethod[P], Generic[P, T]):  # noqa: N801 - used as a decorator
    """A method that makes a flow -> one that answers, and on an asynchronous client has to be awaited."""

    make: Callable[Concatenate[Any, P], Flow[T]]

    def __init__(self, make: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return bind(self, client, lambda flow: client.run(flow)) if client is not None else self


class listing(ClientMethod[P], Generic[P, T]):  # noqa: N801 - used as a decorator
    """A method that names a list -> one that walks through it; with ``async for`` on an asynchronous client."""

    make: Callable[Concatenate[Any, P], Pages[T]]

    def __init__(self, make: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return bind(self, client, lambda pages: client.walk(pages)) if client is not None else self


def bind(made: ClientMethod[...], client: Any, carry_out: Callable[[Any], Any]) -> Callable[..., Any]:
    """The method as a caller gets it, with its own name, words and signature."""

    @functools.wraps(made.make)
    def method(*arguments: Any, **options: Any) -> Any:
        return carry_out(made.make(client, *arguments, **options))

    _, *own = made.__signature__.parameters.values()
    answer = made.__signature__.return_annotation
    if answer.startswith("Iterator[") and hasattr(client, "__aenter__"):
        answer = f"Async{answer}"
    method.__signature__ = inspect.Signature(own, return_annotation=answer)  # type: ignore[attr-defined]
    return method


def describe(make: Callable[..., Any]) -> inspect.Signature:
    """The signature for callers: with what they get, not with the flow that gets it."""
    signature = inspect.signature(make)
    answer = str(signature.return_annotation)  # as it was written
    answer = answer.removeprefix("Flow[").removesuffix("]") if answer.startswith("Flow[") else answer
    return signature.replace(return_annotation=answer.replace("Pages[", "Iterator["))


class Caller:
    """What both clients have in common: where they call, and how patiently."""

    url: str
    pauses: tuple[float, ...]

    def send(self, call: Call) -> Flow[httpx.Response]:
        """One call, repeated while the service is away; the successful answer, else an exception.

        Repeating is safe: a POST or a PUT has the same ``Idempotency-Key`` on every attempt, so the service carries it
        out once, and answers the same.
        """
        if call.method in ("POST", "PUT") and not call.path.endswith("/predictions"):  # which change nothing
            call = replace(call, headers={**call.headers, "Idempotency-Key": str(uuid.uuid4())})
        maybe_done = False
        for pause in (*self.pauses, None):
            outcome = yield call
            if isinstance(outcome, httpx.Response):
                if call.method == "DELETE" and maybe_done and outcome.status_code == 404:
                    return httpx.Response(204)  # it was the first attempt that deleted it
                if pause is None or outcome.status_code not in RETRIED_STATUSES:
                    break
                if outcome.status_code == HTTP_TOO_MANY:
                    pause = max(pause, requested_pause(outcome))
            elif isinstance(outcome, httpx.ReadTimeout | httpx.UnsupportedProtocol):
                # It is there and busy, or the address is wrong: asking again would not help.
                raise UnreachableError(f"no answer from {self.url}: {outcome}") from outcome
            elif pause is None:
                raise UnreachableError(f"cannot reach {self.url}: {outcome}; is the service running?") from outcome
            maybe_done = not isinstance(outcome, httpx.ConnectError)
            yield Pause(pause)
        assert isinstance(outcome, httpx.Response)
        if not outcome.is_success:
            raise ApiError.of(outcome)
        return outcome

    def ask(self, answer: type[T], method: str, path: str, json: Any = None, **params: Any) -> Flow[T]:
        """A call whose answer is read as an object."""
        response = yield from self.send(make_call(method, path, json, params))
        return self.read(answer, response)

    def read(self, answer: type[T], response: httpx.Response) -> T:
        try:
            return msgspec.json.decode(response.content, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"{self.url} answers, but not as Amend would ({error}): is it the right address?"
            raise UnreachableError(message) from error


def requested_pause(answer: httpx.Response) -> float:
    """The seconds that an answer asks to wait before the next attempt."""
    given = answer.headers.get("Retry-After", "")
    return min(float(given), MAX_PAUSE) if given.isdecimal() else 0.0


@dataclass(frozen=True)
class Pages(Generic[T]):
    """A list that comes in pages."""

    item: type[T]
    path: str
    params: Params = field(default_factory=dict)
    limit: int | None = None
    """Items of a page, for who walks through all; None: as many as the service gives."""

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
    """A call without what is not given."""
    if json is not None:
        content, content_type = to_json(json), "application/json"
    headers = {"Content-Type": content_type, "Accept": accept}
    return Call(method, path, without_none(params or {}), content, without_none(headers))


def without_none(given: Mapping[str, T | None]) -> dict[str, T]:
    return {name: value for name, value in given.items() if value is not None}


def list_of(given: Iterable[str]) -> list[str]:
    """Ids, names or the like; a single one is taken as such, not letter by letter.

    >>> list_of("12"), list_of(("1", "2"))
    (['12'], ['1', '2'])
    """
    return [given] if isinstance(given, str) else list(given)


def path(*parts: str | int) -> str:
    """The path of a resource; ids are the callers' own and may hold any character.

    >>> path("models", "churn", "examples", "a/1")
    '/v1/models/churn/examples/a%2F1'
    """
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
