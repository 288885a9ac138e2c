"""After an erasure nothing is left of the person, in no file and no table."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from sqlalchemy import func, select

from core.tables.erasures import Erasure, ErasureState
from tests.conftest import BACKENDS
from tests.endurance.fleet import Fleet
from tests.endurance.many_people import EACH, PEOPLE, bodies, crowd, ids_of, left_of, near_without, places, started
from tests.endurance.traces import found, traces_of
from tests.worker.deployment import DIM
from tests.worker.erasure_helpers import ask, wait_for_end

pytestmark = pytest.mark.timing

ERASED = (3, 77, 200, 399)
BURST, ASKING = 50, 70
"""Number of people with examples among those who ask. The requests of the others match nothing, and are approved."""


@pytest.fixture(scope="module", params=BACKENDS)
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The tests share people, so those whom one has erased must be able to return in the next."""
    settings = {"AMEND_LOG_LEVEL": "debug", "AMEND_RETURNING_SUBJECTS": "accept"}
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), request.param, **settings)
    try:
        yield started(fleet)
    finally:
        fleet.stop()


@contextmanager
def backup(fleet: Fleet) -> Iterator[None]:
    """The database is copied at the beginning; at the end the copy takes its place, and all parts are started again."""
    home, copy = fleet.folder / "home", fleet.folder / "backup.db"
    with sqlite3.connect(home / "amend.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    yield
    fleet.halt()
    for old in home.glob("amend.db*"):
        old.unlink()
    shutil.move(copy, home / "amend.db")
    fleet.start()
    fleet.workers_up(1)
    fleet.add("worker.scheduler")


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_a_backup_with_an_open_erasure_carries_it_out_and_the_chain_is_whole(fleet: Fleet) -> None:
    names, x, y = crowd()
    name = fleet.new_model()
    fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(100, 200))})
    fleet.adapted(name)
    with ExitStack() as restored:
        with fleet.worker_held():
            open_one = ask(fleet, names[100])
            restored.enter_context(backup(fleet))
        assert wait_for_end(fleet, open_one)["state"] == "completed"
        assert wait_for_end(fleet, ask(fleet, names[101]))["state"] == "completed"
    # the workers wait
    assert fleet.get(f"/v1/erasures/{open_one}")["state"] != "completed"
    answer = fleet.post("/v1/erasures/replay")
    assert fleet.get(f"/v1/erasures/{open_one}")["state"] == "completed"  # its receipt was in the store
    assert all(wait_for_end(fleet, id)["state"] == "completed" for id in answer["erasures"])
    assert left_of(fleet, (100, 101)) == []
    chain = fleet.get("/v1/receipts/verify")
    assert chain["valid"], chain


def test_no_stored_byte_depends_on_the_person_after_an_erasure(fleet: Fleet) -> None:
    names, x, y = crowd()
    models = [fleet.new_model() for _ in range(2)]
    order = np.random.default_rng(1).permutation(PEOPLE)
    for i, part in enumerate(np.array_split(order, 8)):  # in many writes, as pages of a database are split and joined
        for name in models:
            examples = {"examples": bodies(names, x, y, part)}
            fleet.post(f"/v1/models/{name}/examples", examples, headers={"Idempotency-Key": f"part-{i}-{name}"})
    for name in models:
        assert fleet.adapted(name)["state"] == "succeeded"
        for p in ERASED:
            fleet.get(f"/v1/models/{name}/examples/{ids_of(p)[0]}")
            fleet.post(f"/v1/models/{name}/predictions", {"inputs": x[p].tolist()})
    # some were removed, and deleted, before
    fleet.ended(fleet.post(f"/v1/models/{models[0]}/removals", {"ids": ids_of(ERASED[0])[:2]})["job"])
    fleet.ended(fleet.post(f"/v1/models/{models[1]}/retrains")["id"])
    secret = fleet.settings.secret
    other = traces_of(names[4], ids_of(4), x[4], secret)
    seen = {what for _, what in found(other, places(fleet))}
    assert seen >= {"hash of the subject", f"id {ids_of(4)[0]}", "input 0"}, "who is there is found"
    assert not seen & {"subject", "a number of input 0"}
    for id in [ask(fleet, names[p]) for p in ERASED]:
        erasure = wait_for_end(fleet, id)
        assert erasure["state"] == "completed", erasure
    assert left_of(fleet, ERASED) == []
    with fleet.client() as client:  # all others are still there
        assert client.get(f"/v1/models/{models[0]}/examples/{ids_of(4)[0]}").status_code == 200


def open_erasures(fleet: Fleet) -> int:
    """How many have not come to an end; asked at once, since an erasure goes to and fro between its models' states."""
    ended = (ErasureState.COMPLETED, ErasureState.FAILED)
    with fleet.database.read() as session:
        return session.scalar(select(func.count()).where(Erasure.state.not_in(ended))) or 0


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_a_burst_of_erasures_is_carried_out_by_few_adaptations(fleet: Fleet) -> None:
    names, x, y = crowd()
    models = [fleet.new_model() for _ in range(3)]
    for name in models:
        fleet.post(f"/v1/models/{name}/examples", {"examples": bodies(names, x, y, range(PEOPLE))})
        fleet.adapted(name)
    asked = [*names[:BURST], *(f"nobody-{i}" for i in range(ASKING - BURST))]
    before = fleet.get("/v1/receipts/verify")["receipts"]
    with fleet.client() as client:

        def ask_for(subject: str) -> str:
            erasure = client.post("/v1/erasures", json={"subject": subject}).raise_for_status().json()
            if erasure["state"] == "unmatched":
                client.post(f"/v1/erasures/{erasure['id']}/approve").raise_for_status()
            return str(erasure["id"])

        with ThreadPoolExecutor(4) as threads:
            ids = list(threads.map(ask_for, asked))
        assert len(set(ids)) == ASKING
        fleet.wait_until(lambda: not open_erasures(fleet), 90)
        assert client.get("/v1/erasures?state=failed").json()["items"] == []
    for name in models:
        jobs = fleet.settled(name)
        assert sum(job["kind"] == "adapt" for job in jobs) < 10, Counter(job["kind"] for job in jobs)
        assert fleet.champion(name)["position"] == PEOPLE * EACH + BURST * EACH
        assert near_without(fleet, name, BURST)
    chain = fleet.get("/v1/receipts/verify")
    assert (chain["valid"], chain["receipts"] - before) == (True, ASKING), chain
    files = fleet.folder / "home" / "artifacts" / "receipts"
    fleet.wait_until(lambda: len(list(files.iterdir())) == chain["receipts"])


@pytest.mark.parametrize("fleet", ["sqlite"], indirect=True)
def test_copies_that_the_database_does_not_list_are_deleted(fleet: Fleet) -> None:
    """SQLite leaves copies of rows in unused parts of pages that it splits, and does not overwrite those."""
    rng, count = np.random.default_rng(0), 8000
    order = rng.permutation(count)
    x = rng.normal(size=(count, DIM)).astype(np.float32)
    rows = [
        {"id": f"number-{i:06d}", "subject": f"somebody-{i:06d}", "x": x[i].tolist(), "y": int(x[i, 0] > 0)}
        for i in order.tolist()
    ]
    name = fleet.new_model()
    for part in range(0, count, 200):
        fleet.post(f"/v1/models/{name}/examples", {"examples": rows[part : part + 200]})
    fleet.adapted(name)
    with sqlite3.connect(fleet.folder / "home" / "amend.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copies = Counter(re.findall(rb"number-(\d{6})", (fleet.folder / "home" / "amend.db").read_bytes()))
    most = [int(number) for number, _ in copies.most_common(5)]
    assert copies.most_common(1)[0][1] > 2, "the row and its place in the index would be two"
    for id in [ask(fleet, f"somebody-{i:06d}") for i in most]:
        assert wait_for_end(fleet, id)["state"] == "completed"
    secret = fleet.settings.secret
    people = [traces_of(f"somebody-{i:06d}", [f"number-{i:06d}"], x[i : i + 1], secret) for i in most]
    assert [trace for person in people for trace in found(person, places(fleet))] == []
