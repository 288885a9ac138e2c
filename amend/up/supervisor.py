"""Starts processes, restarts them when they die, and stops them in order. Used by ``amend up``.

It has one thread, which sleeps until a signal arrives or a restart is due.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from amend.up.process import Process

CHECK_SECONDS = 0.2
"""Interval of readiness checks during the start."""
IDLE_SECONDS = 5.0
"""Interval of checks afterwards."""
SHOW_LOG_AFTER = 3
"""Failures in a row after which the end of the log is shown."""
LOG_LINES = 10
SAME_SIGNAL_SECONDS = 0.5
"""A second signal within this time counts as a repetition of the first."""


class Supervisor:
    """``stages`` lists all processes in the order in which they are stopped; those of one stage stop together."""

    def __init__(self, stages: Sequence[Sequence[Process]], lock: int, say: Callable[[str, str], None]) -> None:
        self.stages = stages
        self.say = say
        self._lock = lock
        self._guard: subprocess.Popen[bytes]
        self._stop_requests = 0
        self._last_request = 0.0
        self._wakeup = -1

    @property
    def parts(self) -> list[Process]:
        return [part for stage in self.stages for part in stage]

    @property
    def stop_requested(self) -> bool:
        return self._stop_requests > 0

    @contextmanager
    def supervise(self) -> Iterator[None]:
        """Handle signals, and kill all processes at the end, however the block ends."""
        self._wakeup, wake = os.pipe()
        for end in (self._wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP, and that should stay.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._request_stop)
        self._start_guard()
        try:
            yield
        finally:
            self._kill_all()
            self._guard.communicate()  # closes its input, which ends it

    def run_once(self, part: Process) -> int | None:
        """Run a process to its end and return its exit status; None if a signal arrived before."""
        self._tell_guard("+", part.start())
        while part.is_running() and not self.stop_requested:
            self._sleep(IDLE_SECONDS)
        code = self._reap(part)
        return None if self.stop_requested else code

    def run(self, check: Callable[[], bool]) -> int:
        """Keep all processes running until a signal arrives, then stop them, and return the exit status.

        `check` is called regularly, more often until it returns True.
        """
        while not self.stop_requested:
            self._restart_dead()
            ready = check()
            for part in self.parts:
                part.limit_log()
            due = [part.restart_at - time.monotonic() for part in self.parts if part.process is None]
            self._sleep(max(0.0, min([IDLE_SECONDS if ready else CHECK_SECONDS, *due])))
        return self._stop()

    def _restart_dead(self) -> None:
        """Restart dead processes whose delay is over."""
        for part in self.parts:
            if part.process is not None and not part.is_running():
                code = self._reap(part)
                how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
                self._report_failure(part, how)
            if part.process is None and time.monotonic() >= part.restart_at and not self.stop_requested:
                self.start(part)
        if self._guard.poll() is not None:
            self._start_guard()

    def start(self, part: Process) -> None:
        """Start a process; if that fails, retry later."""
        try:
            group = part.start()
        except OSError as error:
            self._report_failure(part, f"could not be started ({error.strerror})")
        else:
            self._tell_guard("+", group)

    def _report_failure(self, part: Process, how: str) -> None:
        pause = part.note_failure()
        self.say(part.name, f"{how}; restarting in {pause:g} s (log: {part.log})")
        if part.failures == SHOW_LOG_AFTER:
            self.say(part.name, f"failed {SHOW_LOG_AFTER} times in a row. Last lines of its log:")
            for line in part.last_lines(LOG_LINES):
                self.say(part.name, f"  {line}")

    def _reap(self, part: Process) -> int:
        """Kill what is left of a process and its children, and return its exit status."""
        if part.process is None:
            return 0
        part.kill()
        process, part.process = part.process, None  # the pid may be reused
        process.wait()
        self._tell_guard("-", process.pid)
        return process.returncode

    def _stop(self) -> int:
        """Stop all processes, stage by stage. A second signal kills the rest."""
        self.say("stopping", "a second signal kills everything at once")
        for stage in self.stages:
            for part in stage:
                part.ask_to_stop()
            begun = time.monotonic()
            while self._stop_requests == 1 and any(part.is_running() for part in stage):
                for part in stage:
                    if part.is_running() and time.monotonic() - begun > part.stop_timeout:
                        self.say(part.name, f"did not stop within {part.stop_timeout:g} s; killed")
                        part.kill()
                self._sleep(0.5)
            if self._stop_requests > 1:
                self._kill_all()
                self.say("stopped", "everything was killed; running jobs are retried after the next start")
                return 1
            for part in stage:
                self._reap(part)
                self.say(part.name, "stopped")
        self.say("stopped", "all processes have ended")
        return 0

    def _kill_all(self) -> None:
        for part in self.parts:
            part.kill()
        for part in self.parts:
            self._reap(part)

    def _start_guard(self) -> None:
        """Start the guard, which kills our processes if we cannot. It also holds our lock until it has finished."""
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        self._guard = subprocess.Popen(
            command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True, pass_fds=[self._lock]
        )
        for part in self.parts:
            if part.process is not None:
                self._tell_guard("+", part.process.pid)

    def _tell_guard(self, word: str, group: int) -> None:
        assert self._guard.stdin is not None
        with suppress(BrokenPipeError):  # the guard died; it is restarted at the next check
            self._guard.stdin.write(f"{word}{group}\n".encode())

    def _sleep(self, seconds: float) -> None:
        """Sleep until a signal arrives; the end of a child sends one as well."""
        if select.select([self._wakeup], [], [], seconds)[0]:
            with suppress(BlockingIOError):
                os.read(self._wakeup, 1024)

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        # `timeout`, make and others send the same signal to the process and to its group.
        if time.monotonic() - self._last_request > SAME_SIGNAL_SECONDS:
            self._stop_requests += 1
            self._last_request = time.monotonic()
