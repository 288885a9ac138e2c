"""``python guard.py``: kills the processes of a supervisor that was killed itself.

Standard input is a pipe from the supervisor, on which ``+GROUP`` and ``-GROUP`` add and remove process groups. When the
supervisor ends, for whatever reason, the pipe closes and the guard kills the remaining groups. Linux can send a signal
on a parent's death, but it does not reach grandchildren and is not portable. The guard runs as a plain file so that it
starts quickly and needs little memory.
"""

import os
import signal
import sys
import time
from contextlib import suppress

KILL_TIMEOUT_SECONDS = 5.0
"""How long to wait for killed processes to end. The guard holds the supervisor's lock until then."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line.startswith("+") else groups.discard)(int(line[1:]))
    end = time.monotonic() + KILL_TIMEOUT_SECONDS
    while groups and time.monotonic() < end:
        groups = {group for group in groups if kill(group)}
        time.sleep(0.05)


def kill(group: int) -> bool:
    """Kill a process group. Returns whether it still existed."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False


if __name__ == "__main__":
    main()
