"""One supervised process, with its log file and its history of failures."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

HEALTHY_AFTER_SECONDS = 30.0
"""After this time a process counts as healthy, and earlier failures are forgotten."""
MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 60.0
"""Delay before a restart; doubled with each failure in a row."""
MAX_LOG_BYTES = 16 * 2**20
"""A larger log file is rotated."""


class Process:
    """A command, and the process that runs it, if any.

    The process leads its own process group: Ctrl-C in the terminal does not reach it, and its children are killed with
    it.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        stop_timeout: float = 10.0,
    ) -> None:
        self.name, self.command, self.log = name, command, log
        self.environment, self.folder = dict(environment), folder
        self.stop_timeout = stop_timeout
        """Seconds that it has to end after SIGTERM."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.failures = 0
        self.restart_at = 0.0

    def start(self) -> int:
        """Start the process and return the id of its group."""
        self.started = time.monotonic()
        # In append mode, since `limit_log` truncates the file while the process writes to it.
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
        """Record an unexpected end, and return the delay before the restart."""
        now = time.monotonic()
        self.failures = 1 if now - self.started >= HEALTHY_AFTER_SECONDS else self.failures + 1
        pause = min(MIN_RESTART_SECONDS * 2.0 ** (self.failures - 1), MAX_RESTART_SECONDS)
        self.restart_at = now + pause
        return pause

    def ask_to_stop(self) -> None:
        if self.process is not None and self.is_running():
            self.process.terminate()

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def rotate_log(self) -> None:
        """Start a new log file and keep the previous one."""
        with suppress(FileNotFoundError):
            self.log.replace(previous_log(self.log))

    def limit_log(self) -> None:
        """Rotate a large log file. The process has it open, so it is copied and truncated, not replaced."""
        with suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                with suppress(OSError):  # a full disk has no room for the copy
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
