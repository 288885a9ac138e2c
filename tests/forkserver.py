"""Processes of Amend that start in a few tenths of a second: most of a start is loading torch and other modules.

    process = fork([sys.executable, "-m", "service"], environment, log)

They are loaded once, by a process from which the others are forked. Each of those is what `python -m service` would be,
with an environment and a log of its own; the processes of a service of several are forked as well. Tests of commands,
containers and the tour start the commands themselves.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.servers import die_with_parent

OURS = ("service.app", "worker.job_runner", "core.lifecycle.erase_schedule", "migrations.runner")
CELERY = (
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "celery.worker.components",
)
UVICORN = ("uvicorn.protocols.http.httptools_impl", "uvicorn.loops.uvloop", "uvicorn.lifespan.on")
LATE = ("torch._dynamo", "pandas")
"""What is loaded when a network is first trained, and a frame first read."""
LONGEST = 2**16
"""Bytes of a message."""


class Forked(subprocess.Popen[bytes]):
    """The child of another process than ours, which tells us when it ends."""

    def __init__(self, args: list[str], channel: socket.socket) -> None:
        self.args, self.channel = args, channel
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None  # type: ignore[assignment]
        answer = channel.recv(LONGEST)
        if not answer:
            raise RuntimeError("the process from which others are forked has ended")
        self.pid = int(answer)

    def poll(self) -> int | None:
        return self.ended_in(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self.ended_in(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def ended_in(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self.channel], [], [], seconds)[0]:
            self.returncode = int(self.channel.recv(LONGEST) or -signal.SIGKILL)
            self.channel.close()
        return self.returncode

    def __del__(self) -> None:
        self.channel.close()


def fork(command: list[str], environment: dict[str, str], log: Path) -> Forked:
    """Run `python -m <module>`."""
    message = json.dumps([command[-1], environment, str(log)]).encode()
    assert len(message) <= LONGEST
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(forkserver(), [message], [theirs.fileno()])
    return Forked(command, ours)


@cache
def forkserver() -> socket.socket:
    """Where requests to the server of this process that forks others go; it ends with us."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMEND_")} | {"OMP_NUM_THREADS": "1"}
    with theirs:
        command = [sys.executable, "-P", "-m", "tests.forkserver"]
        subprocess.Popen(command, stdin=theirs, env=environment, start_new_session=True)
    return ours


def serve() -> tuple[str, dict[str, str], str]:
    """Fork for each request until nobody is there who could ask; in a forked process: what it is to run."""
    requests = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, LONGEST, 1)
        if not message:
            sys.exit()
        [channel] = fds
        if os.fork() == 0 and tend(channel):
            module, environment, log = json.loads(message)
            return module, environment, log
        os.close(channel)


def tend(channel: int) -> bool:
    """Start a process and tell how it ended; True in that process."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        die_with_parent()
        os.close(channel)
        return True
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(channel, str(child).encode())
        _, status = os.waitpid(child, 0)
        os.write(channel, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def load() -> None:
    gc.disable()
    for name in (*OURS, *CELERY, *UVICORN, *LATE):
        import_module(name)
    # where uvicorn would start each of its processes afresh, to load everything again
    import_module("uvicorn._subprocess").spawn = multiprocessing.get_context("fork")  # type: ignore[attr-defined]
    gc.freeze()
    gc.enable()


def settle(environment: dict[str, str], log: str) -> None:
    """Take over an environment and a log."""
    os.environ.clear()
    os.environ.update(environment)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(output)


if __name__ == "__main__":
    load()
    module, environment, log = serve()
    settle(environment, log)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
