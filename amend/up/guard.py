"""``python guard.py``: ends what a supervisor leaves behind when it is killed and cannot do it itself.

Its standard input is a pipe from the supervisor: ``+GROUP`` and ``-GROUP`` tell which process groups run. The pipe ends
with the supervisor, whatever ended it; then the groups are killed. A signal at the parent's death (Linux) would reach
neither grandchildren nor another system. Run as a file, for it must start at once and need little memory.
"""

import os
import signal
import sys
import time
from contextlib import suppress

KILL_TIMEOUT_SECONDS = 5.0
"""For killed processes to be gone; until then, the supervisor's lock is kept."""


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
    """Whether there was somebody to kill."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False


if __name__ == "__main__":
    main()
