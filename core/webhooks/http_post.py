"""POST requests to URLs that users chose: which addresses are allowed, and how long a request may take.

The host is resolved and checked here, and the connection uses the checked address, so that it cannot resolve to another
one in between. No proxy is used, no redirect is followed, and only the status of the response is read.
"""

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
"""For one delivery, from the DNS lookup to the status line of the response."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
EMBEDDED_IPV4_NETWORKS = [ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96")]
"""IPv6 addresses that contain IPv4 addresses: NAT64, and the deprecated IPv4-compatible form."""
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses of the public internet."""

PROTOCOL_ASSIGNMENTS = ipaddress.IPv4Network("192.0.0.0/24")
"""Reserved by IANA; early releases of Python 3.11 count most of these addresses as public."""


class PrivateAddress(Exception):
    """The host resolves only to private addresses."""


def is_public(address: Address) -> bool:
    """Whether an address is public, including IPv4 addresses inside IPv6 addresses.

    >>> [is_public(ipaddress.ip_address(a)) for a in ("8.8.8.8", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1")]
    [True, False, False, False]
    >>> is_public(ipaddress.ip_address("192.0.0.192"))
    False
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in EMBEDDED_IPV4_NETWORKS):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and address not in PROTOCOL_ASSIGNMENTS


class Stream(httpcore.NetworkStream):
    """A connection with a deadline: without it, a receiver that sends byte by byte would block for hours."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self.inner, self.deadline = inner, deadline

    def remaining(self) -> float:
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise httpcore.ReadTimeout
        return seconds

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.inner.read(max_bytes, self.remaining())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.inner.write(buffer, self.remaining())

    def close(self) -> None:
        self.inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return Stream(self.inner.start_tls(ssl_context, server_hostname, self.remaining()), self.deadline)

    def get_extra_info(self, info: str) -> Any:
        return self.inner.get_extra_info(info)


def resolve(host: str, port: int, deadline: float) -> list[str]:
    """The distinct addresses of a host. The lookup runs in a thread, because it has no timeout of its own."""
    results: Queue[list[str] | OSError] = Queue()

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            results.put(list(dict.fromkeys(str(entry[4][0]) for entry in entries)))
        except (OSError, UnicodeError) as error:
            results.put(OSError(error))

    threading.Thread(target=look_up, daemon=True).start()
    try:
        result = results.get(timeout=max(0.1, deadline - time.monotonic()))
    except Empty:
        raise httpcore.ConnectTimeout("The DNS lookup timed out.") from None
    if isinstance(result, OSError):
        raise httpcore.ConnectError("The host is unknown.") from result
    return result


class Network(httpcore.NetworkBackend):
    """Connects only to public addresses, unless private ones are allowed."""

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
        # connect only to addresses that were checked, even if the host has others as well
        allowed = [a for a in addresses if self.private or is_public(ipaddress.ip_address(a.partition("%")[0]))]
        if not allowed:
            raise PrivateAddress
        for tried, address in enumerate(allowed, 1):
            # an address that does not respond must leave time for the next ones
            share = max(0.1, self.deadline - time.monotonic()) / (len(allowed) - tried + 1)
            try:
                return Stream(self.inner.connect_tcp(address, port, share, None, socket_options), self.deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def post(url: str, headers: Mapping[str, str], body: bytes, private: bool) -> int:
    """Send a body; returns the status of the response. Raises PrivateAddress or an error of httpcore."""
    network = Network(private, time.monotonic() + TIMEOUT_SECONDS)
    pool = httpcore.ConnectionPool(network_backend=network, max_connections=1)
    with pool, pool.stream("POST", url, headers=list(headers.items()), content=body) as response:
        return response.status
