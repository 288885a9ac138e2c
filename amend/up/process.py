"""One process that a supervisor keeps running, with its log file and the memory of how it did."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

HEALTHY_AFTER_SECONDS = 30.0
"""A process that ran for this long is healthy: earlier failures no longer count."""
MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 60.0
"""Before a process is restarted: doubled each time that it fails soon."""
MAX_LOG_BYTES = 16 * 2**20
"""A larger log file is rotated."""


class Process:
    """A program with its arguments, and the process that runs it, if one does.

    It leads a process group of its own: a Ctrl-C in the terminal is not for it, and what it started ends with it.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        patience: float = 10.0,
    ) -> None:
        self.name, self.command, self.log = name, command, log
        self.environment, self.folder = dict(environment), folder
        self.patience = patience
        """Seconds that it has to end by itself."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.failures = 0
        self.restart_at = 0.0

    def start(self) -> int:
        """Start the process; the number of its group."""
        self.started = time.monotonic()
        # to the end of the file, wherever that is: it moves when the log is kept short
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process.pid

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def note_failure(self) -> float:
        """Note that it ended without being told to; the pause before the next start."""
        now = time.monotonic()
        self.failures = 1 if now - self.started >= HEALTHY_AFTER_SECONDS else self.failures + 1
        pause = min(MIN_RESTART_SECONDS * 2.0 ** (self.failures - 1), MAX_RESTART_SECONDS)
        self.restart_at = now + pause
        return pause

    def ask_to_stop(self) -> None:
        if self.process is not None and self.is_running():
            self.process.terminate()

    def kill(self) -> None:
        """End the process and all that it started, if anything is left of them."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def rotate_log(self) -> None:
        """Begin a new log file, and keep the last one."""
        with suppress(FileNotFoundError):
            self.log.replace(previous_log(self.log))

    def limit_log(self) -> None:
        """Turn a log file that grew too large. The process goes on writing to it, so it is emptied, not replaced."""
        with suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                with suppress(OSError):  # on a full disk none is kept
                    shutil.copyfile(self.log, previous_log(self.log))
                os.truncate(self.log, 0)

    def last_lines(self, count: int) -> list[str]:
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 200 * count))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.strip()][-count:]


def previous_log(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")
