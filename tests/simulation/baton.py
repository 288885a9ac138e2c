"""The baton scheduler: runs one task at a time, and hands over at points that a seeded random generator chooses.

A task is a greenlet. Tasks belong to a group, which stands for a process of the operating system: killing the group
ends all of its tasks. A killed task is unwound, but it can no longer reach anything outside of itself: every operation
of the simulated world raises `Killed`. So cleanup that a real kill would not run has no effect.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random

from greenlet import getcurrent, greenlet

from core.clock import Clock

START = datetime(2026, 1, 1, tzinfo=UTC)
MAX_STEPS = 60_000
MAX_STEP_SECONDS = 0.05


class Killed(BaseException):
    """The process of the running task was killed."""


class Stuck(Exception):
    """The history does not come to an end."""


class Group:
    """A simulated process."""

    def __init__(self, name: str, serving: bool = False) -> None:
        self.name, self.serving = name, serving
        """`serving`: whether it can be killed. The service runs in the task of its caller during a request."""
        self.dead = False
        self.kill_in: int | None = None
        """Number of points after which it is killed."""
        self.stall_in: int | None = None
        """Number of points after which it pauses."""
        self.stall = 0.0
        """For how long, in seconds."""
        self.tasks: list[Task] = []


class Task:
    def __init__(self, name: str, group: Group, thread: greenlet) -> None:
        self.name, self.group, self.thread = name, group, thread
        self.wake_at = 0.0
        self.event: threading.Event | None = None
        self.depth = 0
        """Number of open transactions; the baton is not handed over within one."""


class Baton:
    """Runs tasks until they have all ended, or a condition holds."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(f"baton {seed}")
        self.elapsed = 0.0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.coverage: Counter[str] = Counter()
        """How often each point was passed."""
        self.kill_at: str | None = None
        """Beginning of the name of a point. The next process that reaches one is killed: rare ones would hardly be hit
        by chance."""
        self.kills: Counter[str] = Counter()
        """How often a process was killed at each point."""
        self.trace: list[str] = []
        self.steps = 0
        self.on_death: Callable[[Group], None] = lambda group: None

    def spawn(self, name: str, group: Group, run: Callable[[], None], delay: float = 0.0) -> Task:
        task = Task(name, group, greenlet(run, getcurrent() if self.current is None else self.hub))
        task.wake_at = self.elapsed + delay
        group.tasks.append(task)
        self.tasks.append(task)
        return task

    def run(self, over: Callable[[], bool]) -> None:
        """Run tasks until `over` returns true; it is called between two steps."""
        self.hub = getcurrent()
        while not over():
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Stuck
            self.elapsed += self.random.random() * MAX_STEP_SECONDS
            ready = [task for task in self.tasks if self.is_ready(task)]
            if not ready:
                self.elapsed = max(self.elapsed, min(task.wake_at for task in self.tasks))
                continue
            self.resume(self.random.choice(ready))

    def is_ready(self, task: Task) -> bool:
        return task.group.dead or task.wake_at <= self.elapsed or (task.event is not None and task.event.is_set())

    def resume(self, task: Task) -> None:
        self.current, task.event = task, None
        try:
            if task.group.dead:
                task.thread.throw(Killed)
            else:
                task.thread.switch()
        except Killed:
            pass
        finally:
            self.current = None
        if task.thread.dead:
            self.tasks.remove(task)
            task.group.tasks.remove(task)
            if task.group.dead and not task.group.tasks:
                self.on_death(task.group)

    def point(self, name: str, yields: bool = True) -> None:
        """A point at which the process may be killed and, outside of transactions, another task may run."""
        task = self.current
        if task is None:
            return
        group = task.group
        if group.dead:
            raise Killed
        self.coverage[name] += 1
        if group.serving and self.is_last(name, group):
            self.note(f"killed at {name}")
            self.kills[name] += 1
            group.dead, group.kill_in = True, None
            raise Killed
        if yields and not task.depth:
            self.pause(self.next_stall(group))

    def is_last(self, name: str, group: Group) -> bool:
        """Whether a process is to be killed at this point."""
        if self.kill_at is not None and name.startswith(self.kill_at):
            self.kill_at = None
            return True
        if group.kill_in is None:
            return False
        group.kill_in -= 1
        return group.kill_in < 0

    def next_stall(self, group: Group) -> float:
        """How long a process pauses at this point, apart from handing over the baton."""
        if group.stall_in is None:
            return 0.0
        group.stall_in -= 1
        if group.stall_in >= 0:
            return 0.0
        group.stall_in = None
        return group.stall

    def pause(self, seconds: float, event: threading.Event | None = None) -> None:
        """Let other tasks run, at least for some seconds or until an event is set."""
        task = self.current
        if task is None:
            self.elapsed += seconds
            return
        if task.group.dead:
            raise Killed
        task.wake_at, task.event = self.elapsed + seconds, event
        self.hub.switch()
        if task.group.dead:
            raise Killed

    def note(self, text: str) -> None:
        """Add a line to the trace of the history."""
        task = self.current
        self.trace.append(f"{self.elapsed:9.3f} {task.name if task else '-':<12} {text}")

    @contextmanager
    def within_transaction(self):
        task = self.current
        if task is not None:
            task.depth += 1
        try:
            yield
        finally:
            if task is not None:
                task.depth -= 1

    def end(self) -> None:
        """Kill all tasks that are left."""
        self.on_death = lambda group: None
        self.hub = getcurrent()
        for task in list(self.tasks):
            task.group.dead = True
            self.resume(task)


class SimulatedClock(Clock):
    """The clock of a history: waiting hands over the baton."""

    def __init__(self, baton: Baton) -> None:
        self.baton = baton

    def now(self) -> datetime:
        return START + timedelta(seconds=self.baton.elapsed)

    def monotonic(self) -> float:
        return self.baton.elapsed

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.baton.pause(seconds, event)
        return event.is_set()


class SimulatedThread:
    """Stands in for `threading.Thread`: a task in the group of the task that starts it."""

    baton: Baton

    def __init__(self, target: Callable[[], None], name: str = "", daemon: bool = True) -> None:
        self.target, self.name = target, name
        self.over = threading.Event()

    def start(self) -> None:
        owner = self.baton.current
        assert owner is not None
        self.baton.spawn(f"{owner.name} {self.name}", owner.group, self.run)

    def run(self) -> None:
        try:
            self.target()
        finally:
            self.over.set()

    def join(self, timeout: float | None = None) -> None:
        while not self.over.is_set():
            self.baton.pause(1.0, self.over)
