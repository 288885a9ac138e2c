"""Changes come while workers, broker and scheduler are killed at random: in the end each of them counted once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import PolynomialFeatures
from sqlalchemy import select

from core.ledger import passes
from core.ledger.digest import EMPTY, update_digest
from core.tables.jobs import ENDED, Job, JobState
from core.tables.models import Model
from core.tables.versions import Version
from tests.conftest import BACKENDS
from tests.endurance.fleet import Fleet, children, kill
from tests.worker.deployment import DELTA, Numbers, fitted, problem

pytestmark = pytest.mark.timing

ROUNDS, SEED = 2, 0
SUBJECTS = 40
POLICY = {"adapt": {"after_changes": 50, "every": "1s"}, "holdout": 0.0}


class Ours:
    """A model, and what must have become of it as far as we know."""

    def __init__(self, fleet: Fleet, chance: random.Random, seed: int) -> None:
        self.fleet, self.chance = fleet, chance
        self.name = fleet.new_model(policy=POLICY)
        self.x, self.y = problem(20_000, seed)
        self.used = 0
        self.kept: dict[str, tuple[int, str]] = {}
        """Examples in force: their number and subject by id."""
        self.delta, self.degree = DELTA, 1
        self.promised: list[tuple[str, int]] = []
        """Jobs that were named in an answer, and the position that they must reach."""

    def post(self, what: str, body: Any = None) -> Any:
        print(f"{time.monotonic():.2f} {self.name} {what}")
        return self.fleet.post(f"/v1/models/{self.name}/{what}", body)

    def add(self, least: int = 1) -> None:
        rows, gone = [], [f"e{i}" for i in range(self.used) if f"e{i}" not in self.kept]
        for i in range(self.used, self.used + least + self.chance.randrange(50)):
            # now and then an id that was removed comes back, as another example
            id_ = gone.pop() if gone and self.chance.random() < 0.1 else f"e{i}"
            self.kept[id_] = (i, f"s{self.chance.randrange(SUBJECTS)}")
            rows.append({"id": id_, "x": self.x[i].tolist(), "y": int(self.y[i]), "subject": self.kept[id_][1]})
        self.used += len(rows)
        self.post("examples", {"examples": rows})

    def remove_ids(self) -> None:
        ids = self.chance.sample(sorted(self.kept), self.chance.randint(1, 10))
        self.removed(self.post("removals", {"ids": ids}), ids)

    def remove_subject(self) -> None:
        subject = f"s{self.chance.randrange(SUBJECTS)}"
        ids = [id_ for id_, (_, of) in self.kept.items() if of == subject]
        self.removed(self.post("removals", {"subjects": [subject]}), ids)

    def removed(self, answer: dict[str, Any], ids: list[str]) -> None:
        assert answer["removed"] == len(ids)
        for id_ in ids:
            del self.kept[id_]
        if answer["job"]:
            self.promised.append((answer["job"], answer["position"]))

    def change(self) -> None:
        body: dict[str, Any] = {}
        if self.chance.random() < 0.6:
            self.delta = self.chance.choice([0.5, 1.0, 2.0, 5.0])
            body["regularizer"] = {"kind": "l2", "delta": self.delta}
        if not body or self.chance.random() < 0.4:
            self.degree = self.chance.choice([1, 2])
            body["architecture"] = {"kind": "linear", "degree": self.degree}
        answer = self.post("changes", body)
        if answer["job"]:
            self.promised.append((answer["job"], answer["position"]))

    def ask(self) -> None:
        self.post(self.chance.choice(["adaptations", "adaptations", "retrains"]))

    def step(self) -> None:
        ways: list[Callable[[], None]] = [self.add, self.remove_ids, self.remove_subject, self.change, self.ask]
        self.chance.choices(ways, [5, 4, 2, 2, 1])[0]()

    def truth(self) -> Numbers:
        rows = sorted(number for number, _ in self.kept.values())
        x = PolynomialFeatures(self.degree, include_bias=False).fit_transform(self.x[rows].astype(np.float64))
        return fitted(x, self.y[rows], self.delta)


class Storm:
    """What is done to the parts of a fleet."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.fleet, self.chance = fleet, chance
        self.workers = fleet.workers_up(2)
        self.scheduler = fleet.add("worker.scheduler")
        ways: list[Callable[[], None]] = [self.kill_worker, self.kill_broker, self.kill_scheduler]
        self.strikes = [*ways, *[self.kill_child] * 4, *[lambda: None] * 8] * ROUNDS
        chance.shuffle(self.strikes)
        self.broker_until: float | None = None
        self.hits = 0
        """Processes that were killed in the middle of a job."""

    def say(self, what: str) -> None:
        print(f"{time.monotonic():.2f} {what}")

    def strike(self) -> None:
        if self.broker_until is not None and time.monotonic() > self.broker_until:
            self.calm_broker()
        (self.strikes.pop() if self.strikes else self.kill_child)()

    def kill_child(self) -> None:
        """The process that runs a job, in the middle of it."""
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            ours = {child for worker in self.workers for child in children(worker.pid)}
            for job, child in self.running():
                if child in ours:
                    time.sleep(self.chance.uniform(0, 0.05))
                    self.say(f"kill child {child}")
                    with suppress(ProcessLookupError):  # it has ended for another reason
                        os.kill(child, signal.SIGKILL)
                    self.hits += (job, child) in self.running()
                    return

    def running(self) -> list[tuple[str, int]]:
        """Jobs that run, and their processes."""
        with self.fleet.database.read() as session:
            rows = session.execute(select(Job.id, Job.lease_owner).where(Job.state == JobState.RUNNING)).all()
        return [(job, int(owner.split(":")[1])) for job, owner in rows if owner]

    def kill_worker(self) -> None:
        if all(map(self.fleet.alive, self.workers)):
            self.say("kill worker")
            kill(self.workers.pop(0))
            self.workers.append(self.fleet.add("worker"))

    def kill_scheduler(self) -> None:
        self.say("kill scheduler")
        kill(self.scheduler)
        self.scheduler = self.fleet.add("worker.scheduler")

    def kill_broker(self) -> None:
        if self.broker_until is None:
            self.say("kill broker")
            self.fleet.kill_broker()
            self.broker_until = time.monotonic() + self.chance.uniform(0, 2)

    def calm_broker(self) -> None:
        if self.broker_until is not None:
            self.say("start broker")
            self.fleet.start_broker()
            self.broker_until = None


@pytest.fixture(params=BACKENDS)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    # that workers are killed is our fault, not the jobs'
    fleet = Fleet(tmp_path, request.param, AMEND_MAX_ATTEMPTS="100")
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def test_every_change_counts_once_whatever_is_killed(fleet: Fleet, subtests: pytest.Subtests) -> None:
    chance = random.Random(SEED)
    storm = Storm(fleet, chance)
    models = [Ours(fleet, chance, seed) for seed in range(3)]
    for model in models:
        model.add(least=2000)
        model.post("adaptations")
    while storm.strikes or storm.hits < 2:
        chance.choice(models).step()
        storm.strike()
        time.sleep(chance.uniform(0, 0.1))
    storm.calm_broker()
    fleet.wait_until(lambda: quiet(fleet), 60)

    with subtests.test("no job failed, none is left"):
        with fleet.database.read() as session:
            jobs = session.scalars(select(Job)).all()
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}, [job.error for job in jobs]
        assert max(job.attempts for job in jobs) > 1
    with subtests.test("a job that was named in an answer has done what was asked for"):
        reached = {job.id: job.to_position for job in jobs}
        for model in models:
            assert all(reached[job] >= position for job, position in model.promised)
    with subtests.test("no job made two versions"):
        with fleet.database.read() as session:
            made = Counter(session.scalars(select(Version.job_id)))
        assert set(made.values()) == {1}
    with subtests.test("every change is in one version's range"):
        for model in models:
            check_line(fleet, model.name)
    with subtests.test("champions stand for the examples that they say"):
        for model in models:
            check_dataset(fleet, model.name)
    with subtests.test("champions are as near to scikit-learn's fit as they say"):
        for model in models:
            assert fleet.get(f"/v1/models/{model.name}")["counts"]["train"] == len(model.kept)
            certificate = fleet.champion(model.name)["certificate"]
            distance = np.linalg.norm(fleet.weights(model.name) - model.truth())
            assert certificate["kind"] == "bound"
            assert distance <= certificate["bound"] + 1e-4
    with subtests.test("no file is left that no version refers to"):
        fleet.wait_until(lambda: not fleet.unreferenced(), 10)


def quiet(fleet: Fleet) -> bool:
    """Whether no job waits or runs, and champions are at the heads of their ledgers."""
    with fleet.database.read() as session:
        if session.scalar(select(Job.id).where(Job.state.not_in(ENDED)).limit(1)) is not None:
            return False
        at = select(Version.position).where(Version.model_id == Model.id, Version.number == Model.champion)
        return all(head == position for head, position in session.execute(select(Model.head, at.scalar_subquery())))


def check_dataset(fleet: Fleet, name: str) -> None:
    """The champion's digest, kept up to date by one adaptation after the other, is that of the ledger."""
    with fleet.database.read() as session:
        model = session.scalars(select(Model).where(Model.name == name)).one()
        champion = session.get_one(Version, (model.id, model.champion))
    held = passes.read_in_force(fleet.database, model.id, model.spec, model.head)
    assert champion.dataset_digest == update_digest(fleet.settings.secret, EMPTY, held)


def check_line(fleet: Fleet, name: str) -> None:
    """The champion and its ancestors follow each other without a gap, from the first change to the last."""
    with fleet.database.read() as session:
        model = session.scalars(select(Model).where(Model.name == name)).one()
        until, number = model.head, model.champion
        while number is not None:
            version = session.get_one(Version, (model.id, number))
            job = session.get_one(Job, version.job_id)
            assert version.position == job.to_position == until
            until, number = job.from_position, version.parent
            assert until < version.position
        assert until == 0
