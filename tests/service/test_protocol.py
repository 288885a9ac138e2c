"""Clients without a key that send too much, too slowly or nothing are disconnected; others are served."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.service.conftest import CONNECTIONS, PATIENCE
from tests.service.expect import listed, soon
from tests.stack import Stack

pytestmark = pytest.mark.timing

HEAD = b"POST /v1/models/none/examples HTTP/1.1\r\nHost: amend\r\n"
LONG = 60.0
"""Far longer than anybody's patience; a connection that is open by then has no limit."""


@contextmanager
def connected(stack: Stack) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", stack.port), timeout=LONG) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the problem that the service ends a connection with; 0 if it just ends it."""
    got = b""
    try:
        while part := connection.recv(2**16):
            got += part
    except ConnectionResetError:
        pass
    if not got:
        return 0, {}
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def authorized(stack: Stack, name: str) -> bytes:
    return (
        f"POST /v1/models/{name}/examples HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {stack.admin_key}\r\n".encode()
    )


@pytest.mark.parametrize("header", [b"a: b\r\n", b"a" * 1000, b"a: " + b"b" * 1000], ids=["many", "name", "value"])
def test_endless_headers_are_refused(small: Stack, header: bytes) -> None:
    with connected(small) as connection:
        connection.sendall(HEAD)
        sent = 0
        try:
            while sent < 2**25:
                connection.sendall(header * 50)
                sent += len(header) * 50
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 2**24
    with connected(small) as connection:
        connection.sendall(HEAD + b"".join(b"h%d: %s\r\n" % (i, b"v" * 1000) for i in range(70)) + b"\r\n")
        status, problem = answer(connection)
        assert (status, problem["code"]) == (431, "headers_too_large")


def test_headers_of_an_ordinary_size_are_read(small: Stack) -> None:
    with small.client() as api:
        assert api.get("/healthz", headers={"x-long": "v" * 30_000}).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (b"\r\n", 0),
        (b"GET / HT", 408),
        (HEAD, 408),
        (HEAD + b"Content-Length: 50\r\n\r\n{", 401),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", 401),
    ],
    ids=["nothing", "an empty line", "half a line", "half of the headers", "half a body", "half a chunk"],
)
def test_a_request_that_is_never_finished_ends(small: Stack, sent: bytes, status: int) -> None:
    with connected(small) as connection:
        connection.sendall(sent)
        got, problem = answer(connection)
    assert got == status
    assert status != 408 or problem["code"] == "request_too_slow"


def test_a_second_request_that_is_never_finished_ends(small: Stack) -> None:
    with connected(small) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD)
        assert answer(connection)[0] == 408


@pytest.mark.parametrize("part", [b"", b" "], ids=["silence", "a trickle"])
def test_a_slow_body_of_an_authenticated_caller_times_out(small: Stack, part: bytes) -> None:
    """One byte now and then is too slow as well."""
    name = small.model()
    with connected(small) as connection:
        connection.sendall(authorized(small, name) + b"Content-Length: 4000\r\n\r\n{")
        connection.settimeout(PATIENCE / 8)
        started, got = time.monotonic(), b""
        while not got and time.monotonic() < started + LONG:
            try:
                got = connection.recv(2**16)
            except TimeoutError:
                connection.sendall(part)
    assert got.startswith(b"HTTP/1.1 408")
    assert b"request_too_slow" in got
    with small.client() as api:
        assert listed(api, name) == []


def test_a_slow_and_steady_upload_is_taken_in(small: Stack) -> None:
    """Longer in all than the patience with any part of it."""
    name = small.model()
    body = b'{"examples": [{"id": "a", "x": [1, 2], "y": 1}]}'.ljust(4000)
    with connected(small) as connection:
        connection.sendall(authorized(small, name) + b"Connection: close\r\nContent-Length: 4000\r\n\r\n")
        started = time.monotonic()
        for i in range(0, len(body), 500):
            connection.sendall(body[i : i + 500])
            while time.monotonic() < started + (i + 500) * PATIENCE * 1.5 / len(body):
                time.sleep(0.05)
        assert answer(connection)[0] == 201


def test_an_early_error_can_be_read_and_the_rest_of_the_body_is_not_awaited(small: Stack) -> None:
    with connected(small) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        status, problem = answer(connection)  # it ends though the body never does
    assert (status, problem["code"]) == (401, "key_missing")


def test_connections_above_the_limit_are_refused_and_others_come_back(small: Stack) -> None:
    with ExitStack() as opened:
        idle = [opened.enter_context(connected(small)) for _ in range(CONNECTIONS)]
        with connected(small) as one_more:
            status, problem = answer(one_more)
        assert (status, problem["code"]) == (503, "too_many_connections")
        assert answer(idle[0])[0] == 0  # who says nothing is hung up on, and makes room

    def served() -> bool:
        with small.client() as api:
            return api.get("/healthz").status_code == 200

    assert soon(served, LONG)


def test_invalid_http_is_refused_with_problem_json(small: Stack) -> None:
    with connected(small) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        status, problem = answer(connection)
    assert (status, problem["code"]) == (400, "request_malformed")
