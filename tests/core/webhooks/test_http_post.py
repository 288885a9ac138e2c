"""POST requests to URLs that users chose: allowed addresses and timeouts."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time

import httpcore
import pytest

from core.webhooks import http_post
from tests.receiver import receiving

PRIVATE = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
    *("::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_private_networks_are_not_public(address: str) -> None:
    assert not http_post.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert http_post.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.1"])
def test_nothing_is_sent_to_a_private_address_however_it_is_written(host: str) -> None:
    with receiving() as receiver:
        with pytest.raises(http_post.PrivateAddress):
            http_post.post(f"http://{host}:{receiver.port}/", {}, b"{}", private=False)
        assert receiver.got == []


def test_a_host_name_is_resolved_once_and_the_checked_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to a public address first, and to a private one when it is asked again."""
    answers = iter(["93.184.216.34", "127.0.0.1"])
    connected = []

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    def connect(_: object, host: str, *__: object) -> None:
        connected.append(host)
        raise httpcore.ConnectError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    with pytest.raises(httpcore.ConnectError):
        http_post.post("http://rebinding.example/", {}, b"{}", private=False)
    assert connected == ["93.184.216.34"]


def lead_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name lead to these."""

    def look_up(host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        found = addresses if host.endswith(".example") else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_the_next_address_is_tried_if_one_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    lead_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    with receiving() as receiver:
        assert http_post.post(f"http://several.example:{receiver.port}/", {}, b"{}", private=True) == 204


def test_of_several_addresses_the_private_ones_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def connect(_: object, host: str, *__: object) -> None:
        tried.append(host)
        raise httpcore.ConnectTimeout

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    lead_to(monkeypatch, "10.0.0.1", "93.184.216.34", "127.0.0.1", "1.1.1.1")
    with pytest.raises(httpcore.ConnectTimeout):
        http_post.post("http://several.example/", {}, b"{}", private=False)
    assert tried == ["93.184.216.34", "1.1.1.1"]


@pytest.mark.timing
def test_a_name_that_is_not_looked_up_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(http_post, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(10) and [])
    started = time.monotonic()
    with pytest.raises(httpcore.TimeoutException):
        http_post.post("http://slow.example/", {}, b"{}", private=True)
    assert time.monotonic() - started < 5
    over.set()


def test_no_redirect_is_followed() -> None:
    with receiving() as receiver:
        receiver.status, receiver.headers = 302, {"Location": receiver.url}
        assert http_post.post(receiver.url, {}, b"{}", private=True) == 302
        assert len(receiver.got) == 1


@pytest.mark.timing
def test_a_receiver_that_responds_byte_by_byte_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "TIMEOUT_SECONDS", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
                while not over.wait(0.1):
                    try:
                        connection.sendall(b"a")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        started = time.monotonic()
        with pytest.raises(httpcore.TimeoutException):
            http_post.post(f"http://127.0.0.1:{server.getsockname()[1]}/", {}, b"{}", private=True)
        assert time.monotonic() - started < 5
        over.set()
        thread.join()
