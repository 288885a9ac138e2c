"""Default address and key of the service, for the clients and the ``amend`` command."""

import os
from pathlib import Path

import httpx

from amend.errors import KeyMissing, UnreachableError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def find_url(given: str | None) -> str:
    """The given address, else ``AMEND_URL``, else this machine at ``AMEND_PORT``."""
    url = given or os.environ.get("AMEND_URL") or f"http://127.0.0.1:{find_port()}"
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


def find_port() -> int:
    port = os.environ.get("AMEND_PORT") or "8000"
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise UnreachableError(f"AMEND_PORT must be a port number from 1 to 65535, not {port!r}.")
    return int(port)


def find_key(given: str | None, url: str) -> str:
    """The given key, else ``AMEND_KEY``, else, for a service on this machine only, the admin key."""
    if key := given or os.environ.get("AMEND_KEY"):
        return check_key(key)
    if not is_loopback(url):
        # The admin key of this machine must not be sent to another one.
        raise KeyMissing("No API key. Pass one or set AMEND_KEY. (The admin key is not sent to other hosts.)")
    file = Path(os.environ.get("AMEND_HOME") or "~/.amend").expanduser() / "admin.key"
    try:
        return check_key(file.read_text(errors="replace"))
    except OSError as error:
        hint = f"{file}: {error.strerror}; `amend up` creates it. Set AMEND_HOME if it is elsewhere"
        message = f"No API key. Pass one or set AMEND_KEY. ({hint}.)"
        raise KeyMissing(message) from error


def check_key(text: str) -> str:
    """The key without surrounding white space. Raises KeyMissing, without the text, if it cannot be a key."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise KeyMissing("The API key contains characters other than printable ASCII. Check that you copied the key.")
    return key


def is_loopback(url: str) -> bool:
    try:
        return httpx.URL(url).host in LOOPBACK
    except httpx.InvalidURL:
        return False
