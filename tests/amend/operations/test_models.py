"""A model from its creation to its deletion, jobs, keys and readiness, with both clients."""

from __future__ import annotations

import inspect
import re
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from amend import Client, Conflict, Forbidden, JobFailed, NotFound, responses
from amend.client_methods import listing, operation
from amend.operations import Operations
from amend.requests import Flow, Pages, Pause
from tests.amend.clients import Connect
from tests.amend.operations.data import INPUT, QUIET, TARGET, columns
from tests.worker.deployment import DIM, Deployment

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_columns_and_classes_change(client: Client, deployment: Deployment) -> None:
    column = {"name": "age", "type": "number"}
    name = deployment.new_model(input={"kind": "table", "columns": [column]})
    classes = {"kind": "classes", "values": [0, 1, 2]}
    renamed = {"kind": "table", "columns": [{**column, "name": "years", "was": "age"}]}
    assert client.change_model(name, input=renamed, target=classes).position == 2
    made = client.model(name)
    assert (made.input["columns"][0]["name"], made.target) == ("years", classes)


def test_examples_are_listed_by_source_split_and_time(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    rows = {"id": ["a", "b", "c"], "x": np.zeros((3, DIM)), "y": [0, 1, 1], "split": ["train", "train", "holdout"]}
    when = ["2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z"]
    client.add_examples(name, {**rows, "source": ["crm", "web", "web"], "time": when})
    assert [example.id for example in client.examples(name, source="web")] == ["b", "c"]
    assert [example.id for example in client.examples(name, split="holdout")] == ["c"]
    assert [example.id for example in client.examples(name, since="2026-03-02T00:00:00Z")] == ["b", "c"]
    assert list(client.examples(name, state="quarantined")) == []


def test_a_load_has_a_name_and_a_column_of_times(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model()
    rows = {"id": ["a", "b"], "y": [0, 1], "source": [None, "crm"], **{f"x{i}": [0.0, 1.0] for i in range(DIM)}}
    frame = pd.DataFrame({**rows, "day": ["2026-03-01", "2026-03-02T12:00:00Z"]})
    client.add_examples(name, frame, source="march", time="day")
    listed = list(client.examples(name))
    assert [(example.source, str(example.time)[:16]) for example in listed] == [
        ("march", "2026-03-01 00:00"),
        ("crm", "2026-03-02 12:00"),
    ]
    assert client.remove_examples(name, source="march").removed == 1


def test_a_model_from_its_creation_to_its_deletion(client: Client, deployment: Deployment) -> None:
    name = deployment.new_model() + "x"
    made = client.create_model(name, INPUT, TARGET, regularizer={"kind": "l2", "delta": 2.0}, policy=QUIET)
    assert (made.name, made.head, made.champion, made.policy["holdout"]) == (name, 0, None, 0.1)
    assert name in [model.name for model in client.models()]
    with pytest.raises(Conflict, match="champion_missing"):
        client.version(name, "champion")
    added = client.add_examples(name, columns(60, subject=[f"user-{i}" for i in range(60)]))
    assert (added.accepted, added.duplicates, added.first_position, added.last_position) == (60, 0, 1, 60)
    assert [example.id for example in client.examples(name)] == [f"e{i}" for i in range(60)]
    assert client.example(name, "e3").position == 4

    told: list[responses.Job] = []
    trained = client.wait(client.adapt(name), progress=told.append)
    assert (trained.version, trained.ended, told[-1]) == (1, True, trained)
    removed = client.remove_examples(name, ["e0", "nobody"])
    assert (removed.removed, removed.unknown) == (1, ["nobody"])
    assert client.removal(name, removed.id).unknown_count == 1
    forgotten = client.wait(removed)
    assert forgotten is not None
    assert (forgotten.id, forgotten.version) == (removed.job, 2)
    changed = client.change_model(name, regularizer={"kind": "l2", "delta": 4.0})
    assert changed.job is not None
    client.wait(changed)
    retrained = client.wait(client.retrain(name))

    champion = client.version(name, "champion")
    assert (champion.version, champion.state) == (client.model(name).champion, "champion")
    assert client.coefficients(name, "champion") == client.coefficients(name, champion.version)
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
    assert predicted.outputs[0].class_ == int(predicted.outputs[0].mean > 0.5)
    assert client.predict(name, [[0.0] * DIM], version=1).version == 1
    assert adapted.spec["regularizer"]["delta"] == 2.0
    pair = client.compare(name, 2, newest.version)
    assert (pair.a.version, pair.b.version, pair.rows) == (2, newest.version, client.model(name).counts.holdout)
    assert [(found.field, found.a, found.b) for found in pair.differences] == [("regularizer.delta", 2.0, 4.0)]
    assert pair.metrics["accuracy"].a == adapted.metrics["accuracy"]
    assert pair.coefficients is not None
    assert {found.feature for found in pair.coefficients} == {*(f"x[{i}]" for i in range(DIM)), "(intercept)"}
    rolled_back = client.promote(name, 1)
    assert (rolled_back.state, rolled_back.held) == ("champion", client.model(name).held)
    assert rolled_back.held is not None
    assert rolled_back.held.reason == "version 1 was promoted by hand"
    assert next(client.promotions(name)).version == 1
    [change] = client.changes(name)
    assert (change.position, change.kind, change.value["delta"]) == (62, "regularizer", 4.0)
    assert client.change_model(name, revert=change.position).job is None
    assert client.model(name).regularizer["delta"] == 2.0
    resumed = client.resume(name)
    assert resumed.held is None
    assert resumed.job is not None
    client.wait(resumed)
    assert client.hold(name).held is not None
    assert client.change_policy(name, {"promote": "manual"}).policy["promote"] == "manual"
    client.delete_model(name)
    with pytest.raises(NotFound) as caught:
        client.model(name)
    assert caught.value.code == "model_not_found"


def test_waiting_for_a_job_respects_cancellation_and_the_timeout(client: Client, deployment: Deployment) -> None:
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


def test_readiness_reports_which_part_is_down(client: Client) -> None:
    ready = client.readiness()
    assert (ready.status, ready.worker.ok, ready.mlflow.ok) == ("degraded", True, False)


def test_there_is_a_method_for_every_endpoint(deployment: Deployment) -> None:
    """By what the methods would ask for, against the paths that the service describes."""
    described = httpx.get(f"{deployment.url}/openapi.json", timeout=60).json()["paths"]
    endpoints = {(method.upper(), place) for place, methods in described.items() for method in methods}
    client = Client(deployment.url, "key")
    asked = set()
    for _, member in inspect.getmembers_static(Operations, lambda member: isinstance(member, operation | listing)):
        # an import asks what others ask
        if member.__module__ != "amend.operations.http" and member.make.__name__ != "import_model":
            parameters = inspect.signature(member.make).parameters.values()
            needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD][1:]
            given = {
                "examples": [{"id": "a"}],
                "labels": [{"id": "a", "y": 1}],
                "to": "1.arrow",
                "file": b"",
                "inputs": [[1.0]],
            }
            made = member.make(client, *(given.get(p.name, "1") for p in needed))
            asked.add(("GET", made.path) if isinstance(made, Pages) else first_call(made))
    client.close()

    def met(verb: str, template: str) -> bool:
        pattern = re.sub(r"\{[^}]+\}", "[^/]+", template)
        return any(method == verb and re.fullmatch(pattern, place) for method, place in asked)

    # for probes and for Prometheus; under /v2, for the clients of others; bundles contain proofs; `predict_table`,
    # `letter` and `receipt` use these endpoints with other arguments, or after another request
    others = {"/v1/models/{name}/predictions/bulk", "/v1/restrictions/{id}/letters/{kind}", "/v1/erasures/{id}/receipt"}
    missing = {place for verb, place in endpoints if not met(verb, place) and not place.startswith("/v2")}
    assert missing == {"/healthz", "/metrics", "/v1/register/proof", *others}


def first_call(flow: Flow[Any]) -> tuple[str, str]:
    step = next(flow)
    while isinstance(step, Pause):
        step = next(flow)
    return step.method, step.path
