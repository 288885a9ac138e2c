"""A small synchronous client of Amend's REST API, used by the ``amend`` command.

It adds what every call needs: the key, errors as exceptions, and repeating a request that was lost
on the way. Repeating is safe, because each POST carries an ``Idempotency-Key`` that stays the same
on every attempt: the service carries it out once and answers the repetition as it did the first.
"""

import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

# Seconds before each repetition: enough for a short break of the network, little to wait when nobody is there.
PAUSES = (0.2, 0.5, 1.0)
# A proxy's way of saying that the service behind it is not there just now.
PASSING = frozenset({502, 503, 504})
# Storing a large batch takes a while; finding out that nobody listens must not.
TIMEOUT = httpx.Timeout(120.0, connect=5.0)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

Params = Mapping[str, str | int | bool | None]


class ApiError(Exception):
    """The service refused. ``code`` is a stable word to act upon, ``errors`` names the bad fields."""

    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []

    @classmethod
    def of(cls, response: httpx.Response) -> Self:
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            # Not our service's own words: a proxy, or another server altogether.
            return cls(
                response.status_code, f"http_{response.status_code}", response.reason_phrase or "no reason given"
            )
        detail = problem.get("detail") or problem.get("title") or "no detail given"
        return cls(response.status_code, problem["code"], detail, problem.get("errors"))


class UnreachableError(Exception):
    """No answer: nobody listens at the address, or the connection broke on every attempt."""


class Client:
    """Calls one Amend service with one key.

    >>> with Client("http://127.0.0.1:8000", "amend_...") as client:  # doctest: +SKIP
    ...     client.get(path("models", "churn"))["champion"]
    7
    """

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
                timeout=TIMEOUT,
                transport=transport,
                # A proxy from the environment is for the world outside, not for this machine.
                trust_env=not on_this_machine(self.url),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise UnreachableError(f"cannot call {self.url}: {error}") from error

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,
        content: bytes | None = None,
        content_type: str | None = None,
        accept: str | None = None,
    ) -> httpx.Response:
        """One call, repeated while the service is away; the successful answer, else an exception."""
        given_headers = {"Content-Type": content_type, "Accept": accept}
        headers = {name: value for name, value in given_headers.items() if value is not None}
        if method == "POST":
            headers["Idempotency-Key"] = str(uuid.uuid4())
        given = {name: value for name, value in (params or {}).items() if value is not None}
        request = self._http.build_request(method, path, params=given, json=json, content=content, headers=headers)
        response = self._send(request)
        if not response.is_success:
            raise ApiError.of(response)
        return response

    def _send(self, request: httpx.Request) -> httpx.Response:
        for pause in (*PAUSES, None):
            try:
                response = self._http.send(request)
                if pause is None or response.status_code not in PASSING:
                    return response
            except (httpx.ReadTimeout, httpx.UnsupportedProtocol) as error:
                # It is there and busy, or the address is wrong: asking again would not help.
                raise UnreachableError(f"no answer from {self.url}: {error}") from error
            except httpx.TransportError as error:
                if pause is None:
                    raise UnreachableError(f"cannot reach {self.url}: {error}; is the service running?") from error
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def get(self, path: str, **params: str | int | bool | None) -> Any:
        return self._json(self.request("GET", path, params=params))

    def post(
        self, path: str, json: Any = None, *, content: bytes | None = None, content_type: str | None = None
    ) -> Any:
        return self._json(self.request("POST", path, json=json, content=content, content_type=content_type))

    def patch(self, path: str, json: Any) -> Any:
        return self._json(self.request("PATCH", path, json=json))

    def delete(self, path: str) -> None:
        self.request("DELETE", path)

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError as error:
            raise UnreachableError(f"{self.url} answers, but not as Amend would: is it the right address?") from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def on_this_machine(url: str) -> bool:
    try:
        return httpx.URL(url).host in LOOPBACK
    except httpx.InvalidURL:
        return False


def path(*parts: str | int) -> str:
    """The path of a resource; ids are the callers' own and may hold any character.

    >>> path("models", "churn", "examples", "a/1")
    '/v1/models/churn/examples/a%2F1'
    """
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
