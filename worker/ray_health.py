"""`python -m worker.ray_health HOST:PORT`: exits with status 1 if this container's Ray processes have lost their head.

Health checks run this every few seconds, so it imports neither Ray nor anything else that is slow to load. A node keeps
a connection to the head, which closes it when it declares the node dead. A node without an open connection is therefore
not part of the cluster, even if the head responds.
"""

import socket
import sys
from pathlib import Path

ESTABLISHED = "01"
CONNECT_SECONDS = 3.0


def open_connections(port: int) -> int:
    """Number of open TCP connections of this network namespace from or to a port."""
    found = 0
    for table in filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))):
        for line in table.read_text().splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            ports = {int(address.rpartition(":")[2], 16) for address in (local, remote)}
            found += state == ESTABLISHED and port in ports
    return found


def check(address: str) -> str | None:
    """What is wrong; None if this container's node is connected to the head, and the head accepts connections."""
    host, _, port = address.rpartition(":")
    if not open_connections(int(port)):
        return f"No process of this container is connected to {address}."
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return f"Cannot connect to {address}: {error}."
    return None


if __name__ == "__main__":
    sys.exit(check(sys.argv[1]))
