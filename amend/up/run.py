"""The ``amend up`` command: starts everything, reports progress, and stops everything."""

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
from amend.up.mlflow_authentication import USER
from amend.up.preflight import CannotStart, lock_home
from amend.up.stack import Stack
from amend.up.supervisor import Supervisor

REMINDER_SECONDS = 30.0
"""Interval of messages about processes that are not ready yet."""
MAX_HOLD_SECONDS = 10.0
"""MLflow starts after this time even if other processes are not ready."""
MIN_DISK_BYTES = 4 * 2**20
"""With less free space, the disk counts as full."""


def run(show: bool = False) -> int:
    """Run everything until a signal arrives, and return the exit status. ``show``: open the web pages when ready."""
    os.umask(0o077)  # files are readable only by their owner
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
        fail(f"AMEND_HOME: cannot use {error.filename} ({error.strerror}).")
    with supervisor.supervise():
        say("home", str(home))
        for part in stack.independent:
            supervisor.start(part)
        migrate(supervisor, stack)
        for name in stack.elsewhere:
            say(name, f"not started, because AMEND_{name.upper()}_URL is set")
        return supervisor.run(ReadinessWatch(stack, begun, show))


def migrate(supervisor: Supervisor, stack: Stack) -> None:
    """Migrate the database, or exit with the reason why it failed."""
    try:
        code = supervisor.run_once(stack.migrate)
    except OSError as error:
        fail(f"Cannot start the database migration ({error.strerror}).")
    lines = stack.migrate.last_lines(20)
    if code == 0:
        for line in lines:
            name, colon, text = line.partition(": ")
            say(*((name, text) if colon else ("settings", line)))
    elif code is not None:
        explained = lines and not any(line.startswith("Traceback") for line in lines)
        fail(lines[-1] if explained else f"The database migration failed. See {stack.migrate.log}.")


class ReadinessWatch:
    """Reports each part when it becomes ready, and later a full disk. A call returns True once all parts are ready.

    Amend is ready before MLflow is: jobs run without it, and what they publish waits in the database. On two cores both
    would be slower if they started together, so MLflow starts when everything else is ready.
    """

    def __init__(self, stack: Stack, begun: float, show: bool) -> None:
        self.stack, self.begun, self.show = stack, begun, show
        self.reported: set[str] = set()
        # Without TLS: preparing it takes longer than the request.
        self.http = httpx.Client(base_url=stack.url, timeout=5, trust_env=False, verify=False)
        self.reminded = begun
        self.ready = self.complete = self.full = False

    def __call__(self) -> bool:
        self.check_disk()
        if self.complete:
            return True
        missing = self.missing_parts()
        needed = [name for name in missing if name != "mlflow"]
        if needed in ([], ["receipts"]) or time.monotonic() - self.begun > MAX_HOLD_SECONDS:
            self.stack.release_mlflow()
        self.complete = not missing
        if not needed and not self.ready:
            self.ready = True
            self.say_ready()
            if self.show:
                open_page(self.stack.url)
        elif missing and time.monotonic() - self.reminded > REMINDER_SECONDS:
            self.reminded = time.monotonic()
            say("waiting", f"for {', '.join(missing)}; logs: {self.stack.logs}")
        return self.complete

    def check_disk(self) -> None:
        with suppress(OSError):
            full = shutil.disk_usage(self.stack.home).free < MIN_DISK_BYTES
            if full != self.full:
                say("disk", f"full; free some space in {self.stack.home}" if full else "has space again")
            self.full = full

    def missing_parts(self) -> list[str]:
        """The parts that are not ready yet."""
        try:
            readiness = self.http.get("/readyz").json()
        except (httpx.HTTPError, ValueError):
            return ["service"]
        parts = {name: part for name, part in readiness.items() if isinstance(part, dict)}
        self.say_once("service", f"running at {self.stack.url}")
        for name, part in parts.items():
            if part.get("ok"):
                self.say_once(name, str(part.get("detail")))
        receipts = parts.get("receipts", {})
        if not receipts.get("ok", True):
            self.say_once("jobs wait", str(receipts.get("detail")))
        # An external MLflow may be down: Amend works without it.
        return [n for n, p in parts.items() if not p.get("ok") and (n != "mlflow" or self.stack.mlflow_url)]

    def say_once(self, name: str, text: str) -> None:
        if name not in self.reported:
            self.reported.add(name)
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
    """Open a page in the user's browser, if there is one.

    It runs as a separate process, since a browser may take over the terminal. The user has to sign in: a link with a
    key would be visible to every user of the machine in the list of processes.
    """
    command, nowhere = [sys.executable, "-P", "-m", "webbrowser", url], subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def say(name: str, text: str) -> None:
    """Print one line. A closed output is not a reason to stop."""
    line = Text.assemble((f"{name}:", "bold green" if name == "ready" else "bold"), f" {output.printable(text)}")
    with suppress(OSError, SystemExit):  # rich exits when a pipe is closed
        output.console().print(line, soft_wrap=True)
