"""Checks before anything is started: a writable home folder that no other supervisor uses, and free ports."""

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

MIN_FREE_BYTES = 32 * 2**20
"""Somewhat more than the first start writes."""
TAKEOVER_SECONDS = 6.0
"""How long to wait for the guard of a killed supervisor to end its processes."""


class CannotStart(Exception):
    """Amend cannot start. The message is shown to the user in one line."""


def lock_home(folder: Path) -> int:
    """Lock the home folder until this process and its guard end, and return the lock's file descriptor.

    Raises OSError if the folder is not writable, and CannotStart if the disk is full or another supervisor uses it.
    """
    probe = folder / "room"
    try:
        for path in (folder, folder / "logs"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        take_lock(lock, folder)
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        with probe.open("wb") as file:
            for _ in range(MIN_FREE_BYTES // 2**20):
                file.write(bytes(2**20))
    except OSError as error:
        if error.filename is not None:
            raise
        message = f"AMEND_HOME: cannot use {folder} ({error.strerror}). {MIN_FREE_BYTES // 2**20} MB must be free."
        raise CannotStart(message) from None
    finally:
        with suppress(OSError):
            probe.unlink()
    return lock


def take_lock(lock: int, folder: Path) -> None:
    end = time.monotonic() + TAKEOVER_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode().strip()
            if time.monotonic() > end or is_running(holder):
                which = f"process {holder}" if holder else "another process"
                message = f"amend up is already running in {folder} ({which}). Stop it first, or set AMEND_HOME."
                raise CannotStart(message) from None
        time.sleep(0.1)


def is_running(process: str) -> bool:
    """Whether a supervisor is running. False if it was killed and only its guard is left."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def free_ports(wanted: dict[str, tuple[str, str]]) -> dict[str, int]:
    """Check that ports are free and return them by setting. ``wanted``: setting -> (host, port); port 0 is any."""
    found: dict[str, int] = {}
    sockets: list[socket.socket] = []
    try:
        for setting, (host, given) in wanted.items():
            sockets.append(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sockets[-1].bind((host, int(given)))
            except (ValueError, OverflowError):
                raise CannotStart(f"{setting}: {given!r} is not a port number (0 to 65535).") from None
            except OSError as error:
                message = f"{setting}: cannot use port {given} of {host} ({error.strerror})."
                raise CannotStart(f"{message} Free the port, or set {setting} to another.") from None
            port = sockets[-1].getsockname()[1]
            if port in found.values():  # both sockets could be bound, but only one can listen
                raise CannotStart(f"{setting}: port {port} is used by another setting. Choose a different port.")
            found[setting] = port
    finally:
        for each in sockets:
            each.close()
    return found
