"""One history: the processes of an installation run under the baton, while actions happen; then all faults end."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from core import clock
from core.encoders.loaded_encoders import FrozenEncoders
from core.jobs import messages, outbox
from core.jobs.messages import RUN_TASK
from core.settings import Settings
from core.tracking.publisher import publish
from core.versions import store_identity
from core.webhooks import deliveries
from migrations.runner import upgrade
from tests.simulation.actions import KILL_POINTS, Action, generate
from tests.simulation.baton import Baton, Group, Killed, Stuck
from tests.simulation.callers import Callers, ServiceContext
from tests.simulation.checker import Checker
from tests.simulation.final_checks import FinalChecks
from tests.simulation.installation import installed
from tests.simulation.observed_state import Violation
from tests.simulation.world import SimulatedDatabase, World, make_settings
from worker.context import Context
from worker.job_runner import run as run_job
from worker.scheduler import tick

DAEMONS = ("worker-1", "worker-2", "scheduler", "outbox", "webhooks")
CALLERS = ("api-1", "api-2")
PUBLISH_SECONDS = 10.0
WEBHOOK_SECONDS = 20.0
SETTLE_SECONDS = 7200.0
"""Within which everything must be done once all faults have ended."""


class WorkerContext(Context):
    """The worker's context in a simulated world."""

    def __init__(self, settings: Settings, database: SimulatedDatabase, world: World, name: str) -> None:
        self.settings, self.database, self.store, self.name = settings, database, world.store, name
        self.celery: Any = world.broker
        self.stopping = lambda: False
        self.encoders = FrozenEncoders(world.store, settings)


@dataclass
class Result:
    """What a history led to."""

    seed: int | str
    actions: list[Action]
    trace: list[str]
    coverage: dict[str, int]
    kills: dict[str, int]
    outcomes: dict[str, int]
    violation: Violation | None = None
    seconds: float = 0.0
    """Simulated time."""
    error: BaseException | None = field(default=None, repr=False)


def create_small_database(path: Path) -> None:
    """An empty database with small pages, which is copied and vacuumed faster."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA page_size=1024")
    connection.execute("VACUUM")
    connection.close()


class Laboratory(AbstractContextManager["Laboratory"]):
    """A folder in memory with one database that all histories use, one after another."""

    def __enter__(self) -> Laboratory:
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="amend-simulation-", dir=memory if memory.is_dir() else None))
        self.settings = make_settings(self.folder)
        create_small_database(self.folder / "amend.db")
        self.database = SimulatedDatabase(self.settings)
        SimulatedDatabase.world = World(Baton(0), 0)
        upgrade(self.database)
        self.prepare()
        gc.collect()
        gc.freeze()  # collections would search the product's modules again and again
        return self

    def prepare(self) -> None:
        """Create the models and the webhook that all histories begin with."""
        world = SimulatedDatabase.world
        with installed(world, 0):
            store_identity.begin(self.database, world.store)
            Callers(ServiceContext(self.settings, self.database, world, lambda: None), world).set_up()
        self.template, self.files = self.database.copy(), dict(world.files.live)

    def __exit__(self, *_error: object) -> None:
        gc.unfreeze()
        self.database.close()
        shutil.rmtree(self.folder)

    def run(self, seed: int | str, actions: Sequence[Action] | None = None, replays: bool = True) -> Result:
        """Run the history of a seed, or other actions with the interleaving of the seed."""
        history = History(self, seed, list(generate(seed) if actions is None else actions), replays)
        return history.run()


class History:
    """The state of one run."""

    def __init__(self, laboratory: Laboratory, seed: int | str, actions: list[Action], replays: bool) -> None:
        self.settings, self.database = laboratory.settings, laboratory.database
        self.laboratory, self.seed, self.actions, self.replays = laboratory, seed, actions, replays
        self.baton = Baton(seed)
        self.world = World(self.baton, seed)
        self.wake = threading.Event()
        self.context = ServiceContext(self.settings, self.database, self.world, self.wake.set)
        self.callers = Callers(self.context, self.world)
        self.checker = Checker(self.database, self.world, self.callers)
        self.groups: dict[str, Group] = {}
        self.backup: tuple[bytes, float] | None = None
        self.busy = 0
        """Number of actors that are not done."""
        self.closed = False
        """Whether the daemons must not be started again, because a restore is in progress."""

    def run(self) -> Result:
        result = Result(
            *(self.seed, self.actions, self.baton.trace),
            *(self.baton.coverage, self.baton.kills, self.callers.outcomes),
        )
        SimulatedDatabase.world = self.world
        self.database.replace(self.laboratory.template)
        self.world.files.live.update(self.laboratory.files)
        with installed(self.world, self.seed):
            try:
                self.set_up()
                self.baton.run(lambda: self.busy == 0)
                self.settle()
                FinalChecks(self.checker).run()
            except Violation as violation:
                result.violation = violation
            except Stuck:
                result.violation = Violation("stuck", "The history does not come to an end.")
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                result.violation = Violation("exception", f"{error!r} at {place.filename}:{place.lineno}")
            finally:
                self.world.observe = lambda tables: None
                self.world.broker.check = lambda job_id: None
                self.world.is_over = True
                self.baton.end()
                self.checker.close()
        result.seconds = self.baton.elapsed
        return result

    def set_up(self) -> None:
        self.world.observe = self.checker.observe
        self.world.broker.check = self.checker.check_message
        self.baton.on_death = self.on_death
        for name in DAEMONS:
            self.start(name, 0.0)
        for actor in (*CALLERS, "operator"):
            own = [action for action in self.actions if action.actor == actor]
            self.groups[actor] = Group(actor)
            self.busy += 1
            self.baton.spawn(actor, self.groups[actor], partial(self.act, own))

    def start(self, name: str, delay: float) -> None:
        group = self.groups[name] = Group(name, serving=True)
        kind = name.partition("-")[0]
        self.baton.spawn(name, group, partial(getattr(self, f"run_{kind}"), name), delay)

    def on_death(self, group: Group) -> None:
        if group.name in DAEMONS and not self.closed:
            self.start(group.name, 1.0 + self.world.random.random() * 5.0)

    # The processes

    def run_worker(self, name: str) -> None:
        context = WorkerContext(self.settings, self.database, self.world, f"{name}:{self.world.random.getrandbits(32)}")
        store_identity.begin(self.database, self.world.store)
        while True:
            message = self.world.broker.receive()
            if message is None:
                clock.sleep(1.0)
                continue
            task, arguments = message
            try:
                if task == RUN_TASK:
                    run_job(context, arguments[0])
                    messages.send_track(self.celery)
                else:
                    publish(self.database, self.world.store, self.settings.mlflow_url, context.name, PUBLISH_SECONDS)
            except Killed:
                self.world.broker.give_back(task, arguments)
                raise
            except Violation:
                raise
            except Exception as error:  # Celery logs it and goes on
                self.baton.note(f"task failed: {type(error).__name__}")

    @property
    def celery(self) -> Celery:
        broker: Any = self.world.broker
        return broker

    def run_scheduler(self, _name: str) -> None:
        while True:
            tick(self.settings, self.database, self.celery)
            clock.sleep(self.settings.tick_seconds)

    def run_outbox(self, _name: str) -> None:
        while True:
            clock.wait(self.wake, 600.0)
            self.wake.clear()
            try:
                outbox.flush(self.database, partial(messages.send_job, self.celery))
            except Violation:
                raise
            except Exception:
                clock.sleep(2.0)
                self.wake.set()

    def run_webhooks(self, _name: str) -> None:
        while True:
            clock.sleep(WEBHOOK_SECONDS)
            try:
                with closing(deliveries.Sender(self.database, self.settings.secret, True)) as sender:
                    for attempts in sender.start_due():
                        attempts.result()
            except Violation:
                raise
            except Exception as error:
                self.baton.note(f"webhooks failed: {type(error).__name__}")

    # The actions

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if action.at > self.baton.elapsed:
                self.baton.pause(action.at - self.baton.elapsed)
            self.baton.note(f"{action.kind} {action.value}")
            if action.actor == "operator":
                getattr(self, f"do_{action.kind}")(action)
            else:
                self.callers.perform(action)
        self.busy -= 1

    def do_kill(self, action: Action) -> None:
        self.groups[action.value].kill_in = action.size

    def do_kill_at(self, action: Action) -> None:
        self.baton.kill_at = KILL_POINTS[action.choice % len(KILL_POINTS)]

    def do_stall(self, action: Action) -> None:
        group = self.groups[action.value]
        group.stall_in, group.stall = action.size, 2.0 + action.choice % 40

    def do_outage(self, action: Action) -> None:
        self.world.outages[action.value] = self.baton.elapsed + 5.0 + action.choice % 40

    def do_machine_crash(self, _action: Action) -> None:
        self.kill_all()
        self.world.files.crash()
        self.world.broker.crash()

    def do_backup(self, _action: Action) -> None:
        self.backup = self.database.copy(), self.baton.elapsed

    def do_restore(self, action: Action) -> None:
        """Stop everything, restore the database, and replay what the store has recorded since.

        In half of the histories, the workers run before: they must wait for the replay.
        """
        if self.backup is None:
            return
        self.closed = True
        self.kill_all()
        self.baton.pause(1.0)
        while any(task.group.name in DAEMONS for task in self.baton.tasks):
            self.baton.pause(1.0)
        data, taken_at = self.backup
        self.checker.note_unrecorded()
        self.checker.close()
        self.database.replace(data)
        self.checker.note_restore(taken_at)
        early = self.world.random.random() < 0.5
        if early:
            self.start_daemons()
            self.baton.pause(self.world.random.random() * 40.0)
        for _ in range(3 if self.replays else 0):
            self.callers.perform(action_of("replay", action))
        if not early:
            self.start_daemons()

    def start_daemons(self) -> None:
        self.closed = False
        for name in DAEMONS:
            self.start(name, 0.5)

    def kill_all(self) -> None:
        for group in self.groups.values():
            group.dead = group.dead or group.serving

    def settle(self) -> None:
        """End all faults, and run until nothing is left to do.

        A person ends the holds that rollbacks began, and in some histories decides about rejected versions.
        """
        self.world.outages.clear()
        self.baton.kill_at = None
        for group in self.groups.values():
            group.kill_in, group.stall_in = None, None
        end = self.baton.elapsed + SETTLE_SECONDS
        decision = self.world.random.choice(("accept", "discard", ""))
        for kind, found in (("resume", self.checker.held_models), (decision, self.checker.undecided_models)):
            for model in found() if kind else ():
                self.perform_alone(Action(self.baton.elapsed, "api-1", kind, value=model))
        while True:
            self.baton.run(self.next_check(end))
            if self.checker.has_failed_erasures():
                self.perform_alone(Action(self.baton.elapsed, "api-1", "retry"))
                continue
            return

    def next_check(self, end: float) -> Any:
        """A condition that is checked only every few seconds of simulated time, because checking takes a while."""
        due = [self.baton.elapsed + 5.0]

        def over() -> bool:
            if self.baton.elapsed < due[0]:
                return False
            due[0] = self.baton.elapsed + 10.0
            reason = self.checker.unfinished()
            if reason and self.baton.elapsed > end:
                raise Violation("unfinished", reason)
            return not reason

        return over

    def perform_alone(self, action: Action) -> None:
        self.busy = 1
        group = Group("api-3")
        self.baton.spawn("api-3", group, partial(self.act, [action]))
        self.baton.run(lambda: self.busy == 0)


def action_of(kind: str, action: Action) -> Action:
    return Action(action.at, action.actor, kind)


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    with Laboratory() as found:
        yield found
