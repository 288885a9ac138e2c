"""What must be there before anything is started: a folder that can be written, nobody else in it, and free ports."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

MIN_FREE_BYTES = 32 * 2**20
"""What the first start writes, and some more."""
TAKEOVER_SECONDS = 6.0
"""How long an earlier supervisor, which was killed, has to end what it had started."""


class CannotStart(Exception):
    """Why, in one line for the user."""


def lock_home(folder: Path) -> int:
    """Make the folder ours, until this process and its guard end; the lock.

    It can be written (else OSError), there is room in it, and no other supervisor uses it (else CannotStart).
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
        message = f"AMEND_HOME: {folder} cannot be used ({error.strerror}); {MIN_FREE_BYTES // 2**20} MB must be free"
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
                message = f"amend up runs already in {folder} ({which}). Stop that one first, or set AMEND_HOME."
                raise CannotStart(message) from None
        time.sleep(0.1)


def is_running(process: str) -> bool:
    """Whether a process is there; not, if it was killed and its guard has yet to finish."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def free_ports(wanted: dict[str, tuple[str, str]]) -> dict[str, int]:
    """Ports that can be listened on, by setting; 0 is any. ``wanted``: setting -> (host, what was given for it)."""
    found: dict[str, int] = {}
    sockets: list[socket.socket] = []
    try:
        for setting, (host, given) in wanted.items():
            sockets.append(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sockets[-1].bind((host, int(given)))
            except (ValueError, OverflowError):
                raise CannotStart(f"{setting}: {given!r} is not a port (0 to 65535)") from None
            except OSError as error:
                message = (
                    f"{setting}: port {given} of {host} cannot be used ({error.strerror}). Stop what uses it, or set "
                )
                raise CannotStart(f"{message}{setting} to another.") from None
            port = sockets[-1].getsockname()[1]
            if port in found.values():  # both could listen, until one of them does
                raise CannotStart(f"{setting}: port {port} is another part's already. Set {setting} to another.")
            found[setting] = port
    finally:
        for each in sockets:
            each.close()
    return found
