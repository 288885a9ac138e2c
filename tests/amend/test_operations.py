"""What both clients can do, against a whole Amend; and that it happens once if answers are lost."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from amend import Client, Conflict, ErasureFailed, Forbidden, Invalid, JobFailed, NotFound, batches, responses
from amend.operations import Operations
from amend.sansio import Flow, Pages, Pause, listing, operation
from tests.amend.clients import Connect
from tests.amend.lossy import Lossy, lossy
from tests.servers import free_port
from tests.worker.deployment import DIM, Deployment, problem

QUIET = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}, "memory": {"fraction": 0.5}}
TARGET = {"kind": "binary"}
INPUT = {"kind": "vector", "dim": DIM}

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


@pytest.fixture
def client(connect: Connect, deployment: Deployment) -> Client:
    return connect(deployment.url, deployment.admin_key)


@pytest.fixture
def proxy(deployment: Deployment) -> Iterator[Lossy]:
    with lossy(deployment.port) as proxy:
        yield proxy


@pytest.fixture
def shaky(connect: Connect, deployment: Deployment, proxy: Lossy) -> Client:
    """A client that goes through the proxy."""
    return connect(proxy.url, deployment.admin_key, pauses=(0.01, 0.01, 0.01))


def columns(n: int, first: int = 0, **more: Any) -> dict[str, Any]:
    x, y = problem(n, seed=first)
    return {"id": [f"e{first + i}" for i in range(n)], "x": x, "y": y, **more}


def test_a_model_from_its_creation_to_its_deletion(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model() + "x"
    made = client.create_model(name, INPUT, TARGET, regularizer={"kind": "l2", "delta": 2.0}, policy=QUIET)
    assert (made.name, made.head, made.champion, made.policy["holdout"]) == (name, 0, None, 0.1)
    assert name in [model.name for model in client.models()]
    added = client.add_examples(name, columns(60, subject=["user-1"] * 60))
    assert (added.accepted, added.duplicates, added.first_position, added.last_position) == (60, 0, 1, 60)
    assert [example.id for example in client.examples(name)] == [f"e{i}" for i in range(60)]
    assert client.example(name, "e3").position == 4

    told: list[responses.Job] = []
    trained = client.wait(client.adapt(name), progress=told.append)
    assert (trained.version, trained.ended, told[-1]) == (1, True, trained)
    removed = client.remove_examples(name, ["e0", "nobody"])
    assert (removed.removed, removed.unknown) == (1, ["nobody"])
    assert client.removal(name, removed.id).unknown_count == 1
    assert removed.job is not None
    assert client.wait(removed.job).version == 2
    changed = client.change_model(name, regularizer={"kind": "l2", "delta": 4.0})
    assert changed.job is not None
    client.wait(changed.job)
    retrained = client.wait(client.retrain(name))

    [comparison] = client.comparisons(name)
    assert (comparison.position, comparison.retrained, comparison.within_tolerance) == (62, retrained.version, True)
    assert comparison.accuracy is not None
    assert comparison.cost is not None
    newest, *_, first = client.versions(name)
    assert (first.kind, first.version, newest.version) == ("trained", 1, retrained.version)
    adapted = client.version(name, 2)
    assert adapted.certificate is not None
    assert adapted.certificate.bound is not None
    assert client.weights(name, 2)[8:9] == b"{"
    champion = client.model(name).champion
    predicted = client.predict(name, np.zeros((2, DIM), np.float32))
    assert (predicted.version, len(predicted.outputs)) == (champion, 2)
    assert predicted.outputs[0].class_ in (0, 1)
    assert client.predict(name, [[0.0] * DIM], version=1).version == 1
    assert adapted.spec["regularizer"]["delta"] == 2.0
    pair = client.compare(name, 2, newest.version)
    assert (pair.a.version, pair.b.version, pair.rows) == (2, newest.version, client.model(name).counts.holdout)
    assert [(found.field, found.a, found.b) for found in pair.differences] == [("regularizer.delta", 2.0, 4.0)]
    assert pair.figures["accuracy"].a == adapted.metrics["accuracy"]
    assert pair.coefficients is not None
    assert {found.feature for found in pair.coefficients} == {*(f"x[{i}]" for i in range(DIM)), "(intercept)"}
    rolled_back = client.promote(name, 1)
    assert (rolled_back.state, rolled_back.held) == ("champion", client.model(name).held)
    assert rolled_back.held is not None
    assert rolled_back.held.why == "version 1 was promoted by hand"
    assert next(client.promotions(name)).version == 1
    [change] = client.changes(name)
    assert (change.position, change.kind, change.value["delta"]) == (62, "regularizer", 4.0)
    assert client.change_model(name, revert=change.position).job is None
    assert client.model(name).regularizer["delta"] == 2.0
    resumed = client.resume(name)
    assert resumed.held is None
    assert resumed.job is not None
    client.wait(resumed.job)
    assert client.hold(name).held is not None
    assert client.change_policy(name, {"promote": "manual"}).policy["promote"] == "manual"
    client.delete_model(name)
    with pytest.raises(NotFound) as caught:
        client.model(name)
    assert caught.value.code == "model_not_found"


def test_a_frame_is_predicted_by_one_version_in_its_own_order(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"age": [20, None, 60, 30] * 5, "plan": ["a", "b", "a", None] * 5, "y": [0, 1, 1, 0] * 5})
    described = [{"name": "plan", "type": "category", "values": ["a", "b"]}, {"name": "age", "type": "number"}]
    name = deployment.new_model(input={"kind": "table", "columns": described}, policy={"holdout": 0})
    client.add_examples(name, frame.assign(id=[f"e{i}" for i in range(20)]))
    client.wait(client.adapt(name))
    rows = [{"age": None if np.isnan(a) else a, "plan": None if pd.isna(p) else p} for a, p, _ in frame.to_numpy()]
    expected = [output.mean for output in client.predict(name, rows).outputs]
    monkeypatch.setattr(batches, "ROWS", 7)
    for version in (None, 1):
        found = client.predict(name, frame, version=version)
        # sums of another number of rows may be rounded in another way
        assert [output.mean for output in found.outputs] == pytest.approx(expected, rel=1e-12)
        assert found.version == 1
    with pytest.raises(ValueError, match="the frame lacks 'plan'"):
        client.predict(name, frame.drop(columns="plan"))
    with pytest.raises(ValueError, match="no rows"):
        client.predict(name, frame.head(0))


def test_a_job_is_waited_for_cancelled_and_not_waited_for_longer_than_asked(
    client: Client, deployment: Deployment
) -> None:
    name = deployment.new_model()
    client.add_examples(name, columns(20))
    with deployment.worker_held():
        job = client.adapt(name)
        assert [found.id for found in client.jobs(model=name, state="queued")] == [job.id]
        with pytest.raises(TimeoutError, match=job.id):
            client.wait(job, timeout=0.1)
        assert client.cancel(job).state == "cancelled"
    with pytest.raises(JobFailed) as caught:
        client.wait(job.id)
    assert caught.value.job == client.job(job.id)


def test_a_person_is_looked_up_held_and_refused(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    client.add_examples(name, columns(3, subject=[person, person, None]))
    [held] = client.erase_all([person], hold=True)
    assert (held.state, held.trail[0].what) == ("held", "filed")
    assert [(found.model, found.examples) for found in client.look_up(person)] == [(name, 2)]
    assert [(line["model"], line["id"], line["in_force"]) for line in client.export(person)] == [
        (name, "e0", False),
        (name, "e1", False),
    ]
    assert client.refuse_erasure(held.id, "kept by law").state == "refused"
    assert client.refusal(held).reason == "kept by law"
    assert client.refusal_page(held).startswith("<!doctype html>")
    counts = client.model(name).counts
    assert counts.train + counts.holdout == 3
    again = client.erase(person, hold=True)
    assert client.wait_for_erasure(client.approve_erasure(again.id)).state == "completed"


def test_a_person_is_erased_and_the_receipt_checked(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    person = f"person of {name}"
    client.add_examples(name, columns(40, subject=[person] * 2 + [None] * 38))
    client.wait(client.adapt(name))
    asked = client.erase(person, reason="a letter", received_at=datetime(2026, 1, 1, tzinfo=UTC))
    states: list[responses.Erasure] = []
    done = client.wait_for_erasure(asked, progress=states.append)
    assert (done.state, done.models[0].examples, states[-1]) == ("completed", 2, done)
    assert client.receipt(done)["erasure"] == asked.id
    assert client.receipt_page(done).startswith("<!doctype html>")
    assert client.verify_receipts().valid
    assert client.erasure(asked.id) == done
    assert asked.id in [erasure.id for erasure in client.erasures(state="completed", overdue=False)]
    with pytest.raises(Conflict):
        client.extend_erasure(asked.id, "too late")
    with pytest.raises(Conflict):
        client.retry_erasure(asked.id)
    assert asked.id not in client.replay_erasures().erasures
    assert asked.id not in client.retry_erasures().retried


def test_a_request_that_is_refused_ends_the_waiting(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    client.add_examples(name, columns(20, subject=[name] * 20))
    with deployment.worker_held():
        asked = client.erase(name)
        assert client.extend_erasure(asked.id, "many requests").extension == "many requests"
        assert client.refuse_erasure(asked.id, "kept by law").refusal == "kept by law"
    with pytest.raises(ErasureFailed, match="refused"):
        client.wait_for_erasure(asked.id)


def test_a_key_is_issued_used_and_revoked(client: Client, connect: Connect, deployment: Deployment) -> None:
    name = deployment.new_model()
    issued = client.create_key("reader", ["read"], [name])
    listed = client.keys()
    assert issued.id in [key.id for key in listed]
    reader = connect(deployment.url, issued.key)
    assert [model.name for model in reader.models()] == [name]
    with pytest.raises(Forbidden):
        reader.adapt(name)
    client.revoke_key(issued.id)


def test_readiness_is_told(client: Client) -> None:
    ready = client.readiness()
    assert (ready.status, ready.worker.ok, ready.mlflow.ok) == ("degraded", True, False)


def test_a_frame_and_a_generator_arrive_in_batches(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 10)
    table = {"kind": "table", "columns": [{"name": "a", "type": "number"}, {"name": "b", "type": "category"}]}
    table["columns"][1]["values"] = ["x", "y"]  # type: ignore[index]
    name = deployment.new_model(input=table)
    ids = [f"e{i}" for i in range(25)]
    frame = pd.DataFrame({"id": ids, "a": [np.nan, *range(24)], "b": pd.Categorical(["x", "y"] * 12 + [None])})
    added = client.add_examples(name, frame.assign(y=1))
    assert (added.accepted, added.first_position, added.last_position) == (25, 1, 25)
    assert client.example(name, "e0").x == {"a": None, "b": "x"}
    rows = ({"id": id, "x": {"a": i - 1 if i else None, "b": ["x", "y"][i % 2]}, "y": 1} for i, id in enumerate(ids))
    again = client.add_examples(name, (row for row in rows if row["id"] != "e24"))
    assert (again.accepted, again.duplicates) == (0, 24)


def test_a_bad_example_is_named_by_its_place_among_all(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 10)
    name = deployment.new_model()
    good = columns(25)
    x = good["x"].copy()
    x[23, 1] = np.nan
    with pytest.raises(Invalid) as caught:
        client.add_examples(name, {**good, "x": x})
    assert caught.value.errors[0]["loc"] == ["examples", 23, "x"]
    added = client.add_examples(name, good)
    assert (added.duplicates, added.accepted, added.first_position) == (20, 5, 21)


def test_lost_answers_are_asked_for_again_and_nothing_happens_twice(
    shaky: Client, proxy: Lossy, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 10)
    name = deployment.new_model() + "y"
    proxy.lose = 2
    assert shaky.create_model(name, INPUT, TARGET, policy=QUIET).name == name
    proxy.lose = 2
    added = shaky.add_examples(name, columns(25))
    assert (added.accepted, added.duplicates, added.last_position) == (25, 0, 25)
    # three attempts to create, three at the first batch, one at each of the others
    assert [proxy.keys.count(key) for key in dict.fromkeys(proxy.keys)] == [3, 3, 1, 1]
    proxy.lose = 1
    trained = shaky.wait(shaky.adapt(name))
    proxy.lose = 1
    assert shaky.remove_examples(name, ["e1"]).removed == 1
    proxy.lose = 1
    asked = shaky.erase(name)
    proxy.lose, proxy.refuse = 1, 1
    shaky.delete_model(name)
    assert shaky.erasure(asked.id).id == asked.id
    assert trained.version == 1
    with pytest.raises(NotFound):
        shaky.model(name)


def test_a_service_that_is_busy_or_starts_late_is_asked_again(
    shaky: Client, proxy: Lossy, connect: Connect, deployment: Deployment
) -> None:
    proxy.refuse = 3
    assert shaky.erase("nobody").state == "completed"
    assert len(proxy.keys) == 1
    port, over = free_port(), threading.Event()

    def start_late() -> None:
        with lossy(deployment.port, listen=port):
            over.wait(30)

    # nobody listens at first: connections are refused
    late = connect(f"http://127.0.0.1:{port}", deployment.admin_key, pauses=(0.1,) * 100)
    starting = threading.Timer(0.3, start_late)
    starting.start()
    try:
        assert late.erase("nobody").state == "completed"
    finally:
        over.set()
        starting.join()


def test_there_is_a_method_for_every_endpoint(deployment: Deployment) -> None:
    """By what the methods would ask for, against the paths that the service describes."""
    described = httpx.get(f"{deployment.url}/openapi.json").json()["paths"]
    endpoints = {(method.upper(), place) for place, methods in described.items() for method in methods}
    client = Client(deployment.url, "key")
    asked = set()
    for _, member in inspect.getmembers_static(Operations, lambda member: isinstance(member, operation | listing)):
        if member.__module__ != "amend.http":
            needed = [p for p in inspect.signature(member.make).parameters.values() if p.default is p.empty][1:]
            made = member.make(client, *([{"id": "a"}] if p.name == "examples" else "1" for p in needed))
            asked.add(("GET", made.path) if isinstance(made, Pages) else first_call(made))
    client.close()

    def met(verb: str, template: str) -> bool:
        pattern = re.sub(r"\{[^}]+\}", "[^/]+", template)
        return any(method == verb and re.fullmatch(pattern, place) for method, place in asked)

    # for probes and for Prometheus
    missing = {place for verb, place in endpoints if not met(verb, place)}
    assert missing == {"/healthz", "/metrics"}


def first_call(flow: Flow[Any]) -> tuple[str, str]:
    step = next(flow)
    while isinstance(step, Pause):
        step = next(flow)
    return step.method, step.path
