"""Where the service is and which key to send, if a caller does not say: as for the ``amend`` command."""

import os
from pathlib import Path

import httpx

from amend.errors import KeyMissing, UnreachableError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def find_url(given: str | None) -> str:
    """The given address, else ``AMEND_URL``, else this machine."""
    url = given or os.environ.get("AMEND_URL") or f"http://127.0.0.1:{find_port()}"
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


def find_port() -> int:
    port = os.environ.get("AMEND_PORT") or "8000"
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise UnreachableError(f"AMEND_PORT must be the number of a port, not {port!r}")
    return int(port)


def find_key(given: str | None, url: str) -> str:
    """The given key, else ``AMEND_KEY``, else the admin's, which is for a service on this machine alone."""
    if key := given or os.environ.get("AMEND_KEY"):
        return check_key(key)
    if not is_loopback(url):
        # whoever listens there would be handed the keys to everything here
        raise KeyMissing("no key: give one or set AMEND_KEY (the admin key of this machine is not sent to others)")
    file = Path(os.environ.get("AMEND_HOME") or "~/.amend").expanduser() / "admin.key"
    try:
        return check_key(file.read_text(errors="replace"))
    except OSError as error:
        message = f"no key: give one or set AMEND_KEY ({file}: {error.strerror}; `amend migrate` writes it)"
        raise KeyMissing(message) from error


def check_key(text: str) -> str:
    """A key as it goes out; KeyMissing if it cannot, without showing it."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise KeyMissing("the key holds letters that no key has (only ASCII does): was something else copied?")
    return key


def is_loopback(url: str) -> bool:
    try:
        return httpx.URL(url).host in LOOPBACK
    except httpx.InvalidURL:
        return False
