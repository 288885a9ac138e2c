"""What ``amend up`` does from its start to its end, and what it says meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx
from rich.text import Text

from amend.commands import output
from amend.commands.connection import fail
from amend.up.authentication import USER
from amend.up.home import CannotStart, lock_home
from amend.up.stack import Stack
from amend.up.supervisor import Supervisor

REMINDER_SECONDS = 30.0
"""After which a message says what is still being waited for."""
MIN_DISK_BYTES = 4 * 2**20
"""With less free space, the disk counts as full."""


def run(show: bool = False) -> int:
    """Run everything until a signal comes; the exit code. ``show``: open the first page when all is ready."""
    os.umask(0o077)  # what is written here is for its owner alone
    begun = time.monotonic()
    home = Path(os.environ.get("AMEND_HOME") or "~/.amend").expanduser().absolute()
    try:
        lock = lock_home(home)
        stack = Stack(home)
        supervisor = Supervisor(stack.stages, lock, say)
        for part in (stack.migrate, *supervisor.parts):
            part.rotate_log()
    except CannotStart as problem:
        fail(str(problem))
    except OSError as error:
        fail(f"AMEND_HOME: {error.filename} cannot be used ({error.strerror})")
    with supervisor.supervise():
        say("home", str(home))
        for part in stack.independent:
            supervisor.start(part)
        migrate(supervisor, stack)
        for name in stack.elsewhere:
            say(name, f"not started here: AMEND_{name.upper()}_URL names one")
        return supervisor.run(ReadinessWatch(stack, begun, show))


def migrate(supervisor: Supervisor, stack: Stack) -> None:
    """Bring the database to this version, or end with what is wrong with it."""
    try:
        code = supervisor.run_once(stack.migrate)
    except OSError as error:
        fail(f"the database could not be prepared ({error.strerror})")
    lines = stack.migrate.last_lines(20)
    if code == 0:
        for line in lines:
            name, colon, text = line.partition(": ")
            say(*((name, text) if colon else ("settings", line)))
    elif code is not None:
        explained = lines and not any(line.startswith("Traceback") for line in lines)
        fail(lines[-1] if explained else f"the database could not be prepared; {stack.migrate.log} tells why")


class ReadinessWatch:
    """Says which parts are ready as they come, and later whether the disk is full. True once all parts are ready."""

    def __init__(self, stack: Stack, begun: float, show: bool) -> None:
        self.stack, self.begun, self.show = stack, begun, show
        self.said: set[str] = set()
        # no TLS here: preparing for it takes longer than the question
        self.http = httpx.Client(base_url=stack.url, timeout=5, trust_env=False, verify=False)
        self.reminded = begun
        self.ready = self.full = False

    def __call__(self) -> bool:
        self.check_disk()
        if self.ready:
            return True
        waiting = self.waiting_for()
        self.ready = not waiting
        if self.ready:
            self.say_ready()
            if self.show:
                open_page(self.stack.url)
        elif time.monotonic() - self.reminded > REMINDER_SECONDS:
            self.reminded = time.monotonic()
            say("waiting", f"for {', '.join(waiting)}; logs: {self.stack.logs}")
        return self.ready

    def check_disk(self) -> None:
        with suppress(OSError):
            full = shutil.disk_usage(self.stack.home).free < MIN_DISK_BYTES
            if full != self.full:
                say(
                    "disk",
                    f"full; nothing is stored until there is room in {self.stack.home}" if full else "has room again",
                )
            self.full = full

    def waiting_for(self) -> list[str]:
        """What is not ready yet."""
        try:
            answer = self.http.get("/readyz").json()
        except (httpx.HTTPError, ValueError):
            return ["service"]
        parts = {name: part for name, part in answer.items() if isinstance(part, dict)}
        self.say_once("service", f"answers at {self.stack.url}")
        for name, part in parts.items():
            if part.get("ok"):
                self.say_once(name, str(part.get("detail")))
        # an MLflow elsewhere may be down: nothing but its own pages waits for it
        return [n for n, p in parts.items() if not p.get("ok") and (n != "mlflow" or self.stack.mlflow_url)]

    def say_once(self, name: str, text: str) -> None:
        if name not in self.said:
            self.said.add(name)
            say(name, f"{text} ({time.monotonic() - self.begun:.1f} s)")

    def say_ready(self) -> None:
        key = self.stack.home / "admin.key"
        places = [f"{self.stack.url} (API at /docs)"]
        if self.stack.mlflow_url:
            where = f" in {self.stack.mlflow_key}" if self.stack.mlflow_key.exists() else ": AMEND_MLFLOW_PASSWORD"
            places += [f"MLflow {self.stack.mlflow_url} (user {USER}, password{where})"]
        places += [f"admin key {key}"] if key.exists() else []
        say("ready", f"{'; '.join(places)}; logs {self.stack.logs}; stop with Ctrl-C or kill {os.getpid()}")


def open_page(url: str) -> None:
    """Have the user's browser show a page; where there is none, its address was said.

    In a process of its own, since a browser may take the terminal. It is not signed in: a link that did that would
    stand in the list of processes, where every user of the machine can read it.
    """
    command, nowhere = [sys.executable, "-P", "-m", "webbrowser", url], subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def say(name: str, text: str) -> None:
    """One line. That nobody listens any more is no reason to stop."""
    line = Text.assemble((f"{name}:", "bold green" if name == "ready" else "bold"), f" {output.printable(text)}")
    with suppress(OSError, SystemExit):  # rich ends the process when a pipe is closed
        output.console().print(line, soft_wrap=True)
