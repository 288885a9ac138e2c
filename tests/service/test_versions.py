"""Versions: describe, promote, roll back, download, compare."""

from __future__ import annotations

import hashlib

import httpx
import numpy as np
import onnxruntime
import pytest
from safetensors import numpy as safetensors

from core.models import catalog
from core.tables.versions import Comparison, VersionState
from core.versions.queries import find_version
from tests.service.conftest import MLFLOW_PAGES
from tests.service.expect import add, paged, refused, rows
from tests.stack import Stack


def trained(stack: Stack, api: httpx.Client, versions: int = 1) -> str:
    """A model with some versions, each of two more examples than the one before."""
    name = stack.model()
    add(api, name, rows(6))
    for i in range(versions):
        assert stack.train(name) == i + 1
        add(api, name, rows(2, f"v{i}-"))
    return name


def set_state(stack: Stack, name: str, number: int, state: VersionState) -> None:
    with stack.database.write() as session:
        find_version(session, catalog.find(session, name, None), number).state = state


def test_champion_is_not_accepted_as_a_version_number(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    problem = refused(api.get(f"/v1/models/{name}/versions/champion"), 422, "request_invalid")
    assert "the field `champion` of the model" in problem["detail"]
    body = {"inputs": [[1, 2]], "version": "champion"}
    problem = refused(api.post(f"/v1/models/{name}/predictions", json=body), 422, "request_invalid")
    assert "omit it to predict with the champion" in problem["detail"]


def test_a_version_is_returned_completely(stack: Stack, api: httpx.Client) -> None:
    version = api.get(f"/v1/models/{trained(stack, api)}/versions/1").json()
    assert version.pop("created_at").endswith("Z")
    assert len(version.pop("sha256")) == 64
    assert version.pop("cost").keys() == {"backward_passes", "data_passes", "seconds"}
    gate = version.pop("gate")  # no worker has judged this version
    assert (gate["passed"], gate["reason"], gate["rows"]) == (None, "not_judged", 0)
    assert version == {
        "version": 1,
        "kind": "trained",
        "parent": None,
        "position": 6,
        "removals_position": 6,
        "state": "champion",
        "method": "retrain",
        "memory": {"size": 3, "fraction": 0.5},
        "metrics": {"loss": 0.5},
        "certificate": None,
        "quarantined": 0,
        "headline": "loss",
        "spec": {
            "input": {"kind": "vector", "dim": 2},
            "target": {"kind": "binary"},
            "architecture": {"kind": "linear", "degree": 1},
            "regularizer": {"kind": "l2", "delta": 1.0, "penalize_bias": False},
            "loss": {"kind": "log"},
        },
        "mlflow": None,
    }


def test_models_and_versions_link_to_mlflow(small: Stack) -> None:
    with small.client() as api:
        name = small.model()
        add(api, name, rows(4))
        small.train(name)
        small.train(name)
        assert api.get(f"/v1/models/{name}").json()["mlflow"] is None
        assert api.get(f"/v1/models/{name}/versions/2").json()["mlflow"] is None
        with small.database.write() as session:
            model = catalog.find(session, name, None)
            find_version(session, model, 1).mlflow = {"run_id": "4fe1", "version": None}
            find_version(session, model, 2).mlflow = {"run_id": "5fe2", "version": "7"}
        page, classic = f"{MLFLOW_PAGES}/#/models/{name}", "?workflowType=machine_learning"
        assert api.get(f"/v1/models/{name}").json()["mlflow"] == {"url": f"{page}{classic}"}
        places = [version["mlflow"] for version in api.get(f"/v1/models/{name}/versions").json()["items"]]
        assert places == [
            {"run_id": "5fe2", "version": "7", "url": f"{page}/versions/7{classic}"},
            {"run_id": "4fe1", "version": None, "url": f"{MLFLOW_PAGES}/#/runs/4fe1{classic}"},
        ]
        assert api.get(f"/v1/models/{name}/versions/2").json()["mlflow"] == places[0]
        assert api.post(f"/v1/models/{name}/versions/1/promote").json()["mlflow"] == places[1]


def test_each_version_has_the_spec_that_it_was_trained_with(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    changes = {"regularizer": {"kind": "l2", "delta": 9.0, "penalize_bias": True}}
    api.post(f"/v1/models/{name}/changes", json=changes).raise_for_status()
    stack.train(name)
    square = {"kind": "linear", "degree": 2}
    api.post(f"/v1/models/{name}/changes", json={"architecture": square}).raise_for_status()
    stack.train(name)
    versions = api.get(f"/v1/models/{name}/versions").json()["items"]
    specs = [(v["spec"]["architecture"]["degree"], v["spec"]["regularizer"]["delta"]) for v in versions]
    assert specs == [(2, 9.0), (1, 9.0), (1, 1.0)]
    assert versions[1]["spec"] == api.get(f"/v1/models/{name}/versions/2").json()["spec"]


def test_versions_are_listed_newest_first_in_pages(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 3)
    versions = list(paged(api, f"/v1/models/{name}/versions", limit=2))
    assert [v["version"] for v in versions] == [3, 2, 1]
    assert [v["state"] for v in versions] == ["champion", "superseded", "superseded"]
    assert [v["position"] for v in versions] == [10, 8, 6]
    assert versions[0] == api.get(f"/v1/models/{name}/versions/3").json()


def test_the_model_has_its_champion_and_pending_changes(stack: Stack, api: httpx.Client) -> None:
    model = api.get(f"/v1/models/{trained(stack, api)}").json()
    assert (model["champion"], model["head"], model["pending"]) == (1, 8, 2)


def test_a_rollback_is_a_promotion(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 2)
    answer = api.post(f"/v1/models/{name}/versions/1/promote")
    assert answer.status_code == 200
    assert (answer.json()["version"], answer.json()["state"]) == (1, "champion")
    assert api.get(f"/v1/models/{name}/versions/2").json()["state"] == "superseded"
    assert api.get(f"/v1/models/{name}").json()["champion"] == 1


def test_promotions_record_their_actor(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 2)
    api.post(f"/v1/models/{name}/versions/1/promote").raise_for_status()
    listed = [(p["version"], p["previous"]) for p in paged(api, f"/v1/models/{name}/promotions", limit=2)]
    assert listed == [(1, 2), (2, 1), (1, None)]
    by = [p["by"] for p in paged(api, f"/v1/models/{name}/promotions")]
    assert by == [stack.admin_key.split("_")[1], "policy", "policy"]


def test_a_purged_version_cannot_be_downloaded(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 2)
    set_state(stack, name, 1, VersionState.PURGED)
    refused(api.get(f"/v1/models/{name}/versions/1/weights"), 404, "version_purged")
    assert api.get(f"/v1/models/{name}/versions/1").json()["state"] == "purged"
    assert api.get(f"/v1/models/{name}").json()["champion"] == 2


def test_promoting_a_purged_version_starts_a_job_that_rebuilds_it(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 3)
    for number in (1, 2):
        set_state(stack, name, number, VersionState.PURGED)
    response = api.post(f"/v1/models/{name}/versions/1/promote")
    assert response.status_code == 202
    promoted = response.json()
    assert (promoted["version"], promoted["state"], promoted["held"]) == (1, "purged", None)
    job = api.get(f"/v1/jobs/{promoted['job']}").json()
    assert (job["kind"], job["state"], job["to_position"]) == ("rebuild", "queued", 6)
    assert api.get(f"/v1/jobs?model={name}&kind=rebuild").json()["items"] == [job]
    assert api.post(f"/v1/models/{name}/versions/1/promote").json()["job"] == job["id"]
    problem = refused(api.post(f"/v1/models/{name}/versions/2/promote"), 409, "rebuild_in_progress")
    assert job["id"] in problem["detail"]
    model = api.get(f"/v1/models/{name}").json()
    assert (model["champion"], model["held"]) == (3, None), "until the job ends"


def test_a_version_that_lost_most_of_its_examples_is_not_rebuilt(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 2)
    set_state(stack, name, 1, VersionState.PURGED)
    ids = [row["id"] for row in rows(6)]
    api.post(f"/v1/models/{name}/removals", json={"ids": ids[:4]}).raise_for_status()
    problem = refused(api.post(f"/v1/models/{name}/versions/1/promote"), 409, "version_not_rebuildable")
    assert "Only 2 of the 6 examples" in problem["detail"]


def test_the_weights_are_the_file_that_the_version_names(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api)
    file = api.get(f"/v1/models/{name}/versions/1/weights")
    assert file.headers["content-type"] == "application/octet-stream"
    sha256 = hashlib.sha256(file.content).hexdigest()
    assert sha256 == api.get(f"/v1/models/{name}/versions/1").json()["sha256"] == file.headers["etag"].strip('"')
    assert safetensors.load(file.content)["w"].shape == (3,)


def test_with_certified_removal_weights_require_admin(stack: Stack, api: httpx.Client) -> None:
    promise = {"epsilon": 1.0, "delta": 1e-3, "sigma": 2.0}
    penalised = {"kind": "l2", "delta": 1.0, "penalize_bias": True}
    path = f"/v1/models/{stack.model(training={'removal': promise}, regularizer=penalised)}/versions/1/weights"
    with stack.client(stack.key("weights")) as holder:
        refused(holder.get(path), 403, "scope_missing")
    refused(api.get(path), 404, "version_not_found")


@pytest.mark.parametrize("path", ["versions/2", "versions/2/weights", "versions/2147483647"])
def test_an_unknown_version_is_not_found(stack: Stack, api: httpx.Client, path: str) -> None:
    refused(api.get(f"/v1/models/{trained(stack, api)}/{path}"), 404, "version_not_found")


def test_an_unknown_version_cannot_be_promoted(stack: Stack, api: httpx.Client) -> None:
    refused(api.post(f"/v1/models/{trained(stack, api)}/versions/2/promote"), 404, "version_not_found")


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5", "2147483648", "9" * 5000])
def test_an_invalid_version_number_is_refused(stack: Stack, api: httpx.Client, number: str) -> None:
    refused(api.get(f"/v1/models/any/versions/{number}"), 422, "request_invalid")


@pytest.mark.parametrize("what", ["versions", "promotions", "comparisons"])
def test_a_bad_cursor_is_refused(stack: Stack, api: httpx.Client, what: str) -> None:
    refused(api.get(f"/v1/models/{stack.model()}/{what}?after=x"), 422, "cursor_invalid")


@pytest.mark.parametrize("what", ["versions", "promotions", "comparisons"])
def test_lists_of_a_new_model_are_empty(stack: Stack, api: httpx.Client, what: str) -> None:
    assert api.get(f"/v1/models/{stack.model()}/{what}").json() == {"items": [], "next": None}


def test_comparisons_are_listed_newest_first(stack: Stack, api: httpx.Client) -> None:
    name = trained(stack, api, 2)
    cost = {"backward_passes": 4.0, "data_passes": 2.0, "seconds": 0.5}
    figures = {
        "accuracy": {"adapted": 0.9, "retrained": 0.91, "difference_se": 0.002},
        "loss": {"adapted": 0.3, "retrained": 0.29},
        "rows": 20000,
        "disagreement": 0.01,
        "disagreement_se": 0.001,
        "weight_distance": 0.002,
        "cost": {"adapted": cost, "retrained": cost},
        "speedup": 40.0,
        "retrain_is_worse": "accuracy 0.9 against 0.91",
        "took_over": False,
        "outcome": "the retrained version stays a candidate",
    }
    with stack.database.write() as session:
        model_id = catalog.find(session, name, None).id
        for position in (6, 8):
            entry = Comparison(model_id=model_id, position=position, adapted=1, retrained=2, within_tolerance=True)
            entry.result = figures
            session.add(entry)
            session.flush()
    items = list(paged(api, f"/v1/models/{name}/comparisons", limit=1))
    assert [item["position"] for item in items] == [8, 6]
    assert items[0].pop("created_at")
    assert items[0] == {"position": 8, "adapted": 1, "retrained": 2, "within_tolerance": True, **figures}


def test_coefficients_by_name_require_the_scope_weights(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(20))
    stack.train(name)
    path = f"/v1/models/{name}/versions/1/coefficients"
    weights = safetensors.load(api.get(f"/v1/models/{name}/versions/1/weights").content)["w"]
    answer = api.get(path).raise_for_status().json()
    assert [item["feature"] for item in answer["items"]] == ["x[0]", "x[1]", "(intercept)"]
    assert [item["coefficient"] for item in answer["items"]] == pytest.approx(weights.tolist())
    assert answer["items"][0].keys() == {"feature", "class", "coefficient", "standardised"}
    with stack.client(stack.key("read")) as reader:
        refused(reader.get(path), 403, "scope_missing")
    network = stack.model(architecture={"kind": "mlp", "hidden": [2]})
    add(api, network, rows(20))
    stack.train(network)
    refused(api.get(f"/v1/models/{network}/versions/1/coefficients"), 409, "model_not_linear")
    refused(api.get(f"/v1/models/{name}/versions/9/coefficients"), 404, "version_not_found")


def test_an_onnx_file_predicts_what_the_service_does(stack: Stack, api: httpx.Client) -> None:
    columns = [{"name": "age", "type": "number"}, {"name": "plan", "type": "category", "values": ["free", "paid"]}]
    name = stack.model(input={"kind": "table", "columns": columns})
    inputs = [{"age": 20 + i if i % 5 else None, "plan": ["free", "paid", None][i % 3]} for i in range(30)]
    add(api, name, [{"id": f"e{i}", "x": x, "y": i % 2} for i, x in enumerate(inputs)])
    stack.train(name)
    path = f"/v1/models/{name}/versions/1/onnx"
    session = onnxruntime.InferenceSession(api.get(path).raise_for_status().content)
    ages = np.array([[np.nan if x["age"] is None else x["age"]] for x in inputs], np.float32)
    plans = np.array([[x["plan"] or ""] for x in inputs], object)
    mean, decided = session.run(["mean", "class"], {"age": ages, "plan": plans})
    answers = api.post(f"/v1/models/{name}/predictions", json={"inputs": inputs}).raise_for_status().json()["outputs"]
    assert mean[:, 0].tolist() == pytest.approx([answer["mean"] for answer in answers], abs=1e-5)
    assert decided.tolist() == [answer["class"] for answer in answers]
    with stack.client(stack.key("read")) as reader:
        refused(reader.get(path), 403, "scope_missing")
