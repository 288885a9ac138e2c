"""One POST to an address that somebody else chose: where it may lead, and how long it may take.

The name is looked up here, and what it leads to is what is connected to: it cannot lead elsewhere in between. There is
no proxy, no redirect is followed, and of the answer nothing is read but its status.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from queue import Empty, Queue
from ssl import SSLContext
from typing import Any

import httpcore

TIMEOUT_SECONDS = 10.0
"""For one delivery, from the DNS lookup to the status line of the answer."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
EMBEDDED_IPV4_NETWORKS = [ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96")]
"""IPv6 addresses that stand for IPv4 ones: by NAT64, and in the deprecated IPv4-compatible form."""
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses of the public internet."""


class PrivateAddress(Exception):
    """The name leads into a network that is not everybody's."""


def is_public(address: Address) -> bool:
    """Whether an address is on the internet, whatever it is wrapped in.

    >>> [is_public(ipaddress.ip_address(a)) for a in ("8.8.8.8", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1")]
    [True, False, False, False]
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in EMBEDDED_IPV4_NETWORKS):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast


class Stream(httpcore.NetworkStream):
    """A connection that ends at a time: a receiver that sends byte by byte would else hold us for hours."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self.inner, self.deadline = inner, deadline

    def left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout
        return left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.inner.read(max_bytes, self.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.inner.write(buffer, self.left())

    def close(self) -> None:
        self.inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return Stream(self.inner.start_tls(ssl_context, server_hostname, self.left()), self.deadline)

    def get_extra_info(self, info: str) -> Any:
        return self.inner.get_extra_info(info)


def resolve(host: str, port: int, deadline: float) -> list[str]:
    """The addresses that a name leads to, each once; in a thread of its own, since nothing else can be hung up on."""
    answers: Queue[list[str] | OSError] = Queue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put(list(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, UnicodeError) as error:
            answers.put(OSError(error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.1, deadline - time.monotonic()))
    except Empty:
        raise httpcore.ConnectTimeout("the name was not looked up in time") from None
    if isinstance(answer, OSError):
        raise httpcore.ConnectError("the name is unknown") from answer
    return answer


class Network(httpcore.NetworkBackend):
    """Connects to public addresses, or to all."""

    def __init__(self, private: bool, deadline: float) -> None:
        self.private, self.deadline = private, deadline
        self.inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = resolve(host, port, self.deadline)
        # what is checked here is what is connected to: a name that leads elsewhere, too, leads nowhere else
        allowed = [a for a in addresses if self.private or is_public(ipaddress.ip_address(a.partition("%")[0]))]
        if not allowed:
            raise PrivateAddress
        for tried, address in enumerate(allowed, 1):
            # one that does not answer must not take the time of those after it
            left = max(0.1, self.deadline - time.monotonic()) / (len(allowed) - tried + 1)
            try:
                return Stream(self.inner.connect_tcp(address, port, left, None, socket_options), self.deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def post(url: str, headers: Mapping[str, str], body: bytes, private: bool) -> int:
    """Send a body; the status of the answer. PrivateAddress, or one of httpcore's errors, if there is none."""
    network = Network(private, time.monotonic() + TIMEOUT_SECONDS)
    pool = httpcore.ConnectionPool(network_backend=network, max_connections=1)
    with pool, pool.stream("POST", url, headers=list(headers.items()), content=body) as answer:
        return answer.status
