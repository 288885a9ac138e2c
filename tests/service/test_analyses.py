"""Requests of analyses: what they answer at once, and what they refuse; explanations of predictions."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import select

from core.database import Base
from tests.service.expect import add, refused, rows
from tests.service.test_predictions import TARGETS, X, predict, trained, weights
from tests.stack import Stack


@pytest.fixture(scope="module")
def model(stack: Stack) -> str:
    with stack.client() as api:
        name = stack.model(policy={"certify": "never"})
        add(api, name, [{**row, "split": "holdout" if i % 3 == 0 else "train"} for i, row in enumerate(rows(60))])
        stack.train(name)
    return name


def ask(api: httpx.Client, name: str, **body: Any) -> httpx.Response:
    return api.post(f"/v1/models/{name}/analyses", json=body)


def test_preview_answers_at_once_and_is_kept(api: httpx.Client, model: str) -> None:
    response = ask(api, model, kind="preview", remove={"ids": ["e1", "e2"]})
    assert response.status_code == 200, response.text
    found = response.json()
    assert (found["kind"], found["job"], found["version"], found["position"]) == ("preview", None, 1, 60)
    result = found["result"]
    assert {"before", "after", "difference", "bound", "gate", "predictions"} <= result.keys()
    assert result["before"]["rows"] == result["after"]["rows"] == 20
    assert api.get(f"/v1/models/{model}/analyses/{found['id']}").json() == found
    listed = api.get(f"/v1/models/{model}/analyses", params={"kind": "preview", "limit": 1}).json()
    assert [item["id"] for item in listed["items"]] == [found["id"]]
    assert api.get(f"/v1/models/{model}").json()["counts"]["train"] == 40


def test_removed_holdout_rows_leave_the_preview(api: httpx.Client, model: str) -> None:
    result = ask(api, model, kind="preview", remove={"ids": ["e0", "e1"]}).json()["result"]
    assert (result["removed"], result["after"]["rows"]) == (2, 19)
    added = [{"id": "new", "x": [0.5, 0.1], "y": 1, "split": "holdout"}]
    assert ask(api, model, kind="preview", add=added).json()["result"]["after"]["rows"] == 21


def test_other_kinds_are_jobs(api: httpx.Client, model: str) -> None:
    for body in ({"kind": "leave_one_out"}, {"kind": "cross_validation"}, {"kind": "influence", "by": "example"}):
        response = ask(api, model, **body)
        assert response.status_code == 202, response.text
        started = response.json()
        assert started.keys() == {"id", "job"}
        job = api.get(f"/v1/jobs/{started['job']}").json()
        assert (job["kind"], job["state"]) == ("analyse", "queued")
        waiting = api.get(f"/v1/models/{model}/analyses/{started['id']}").json()
        assert (waiting["result"], waiting["position"], waiting["job"]) == (None, None, started["job"])
        api.post(f"/v1/jobs/{started['job']}/cancel")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "request_invalid"),
        ({"kind": "guess"}, "request_invalid"),
        ({"kind": "preview"}, "request_invalid"),
        ({"kind": "preview", "remove": {}}, "request_invalid"),
        ({"kind": "preview", "remove": {"ids": ["a"], "source": "b"}}, "request_invalid"),
        ({"kind": "preview", "add": [{"id": "a", "x": [1], "y": 1}]}, "example_shape_mismatch"),
        ({"kind": "preview", "add": [{"id": "a", "x": [1, 2], "y": None}]}, "label_missing"),
        ({"kind": "preview", "change": {"regularizer": {"kind": "l2", "delta": -1}}}, "request_invalid"),
        ({"kind": "preview", "remove": {"ids": ["a"]}, "erasure": True}, "request_invalid"),
        ({"kind": "leave_one_out", "by": "person"}, "request_invalid"),
        ({"kind": "leave_one_out", "top": 0}, "request_invalid"),
        ({"kind": "cross_validation", "folds": 1}, "request_invalid"),
        ({"kind": "tuning", "parameter": "policy.holdout", "values": [1, 2]}, "parameter_unknown"),
        ({"kind": "tuning", "values": [-1, 1]}, "value_invalid"),
        ({"kind": "tuning", "parameter": "architecture.degree"}, "request_invalid"),
        ({"kind": "influence", "on": {"inputs": [[1]]}}, "example_shape_mismatch"),
        ({"kind": "labelling", "inputs": []}, "request_invalid"),
        ({"kind": "labelling", "inputs": [["a", "b"]]}, "request_invalid"),
    ],
)
def test_bad_requests_are_refused(api: httpx.Client, model: str, body: dict[str, Any], code: str) -> None:
    refused(ask(api, model, **body), 422, code)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"\\ud800"'])
@pytest.mark.parametrize(
    "body",
    [
        '{"kind": "preview", "add": [{"id": "a", "x": [1, VALUE], "y": 1}]}',
        '{"kind": "influence", "on": {"inputs": [[1, VALUE]]}}',
        '{"kind": "labelling", "inputs": [[1, VALUE]]}',
    ],
)
def test_data_that_is_not_json_is_refused(api: httpx.Client, model: str, body: str, value: str) -> None:
    content = body.replace("VALUE", value).encode()
    refused(api.post(f"/v1/models/{model}/analyses", content=content), 400, "body_malformed")


def test_a_model_without_a_version_cannot_be_analysed(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(3))
    refused(ask(api, name, kind="leave_one_out"), 409, "champion_missing")
    refused(api.get(f"/v1/models/{name}/analyses/none"), 404, "analysis_not_found")


def test_analyses_need_their_own_scope_and_respect_hidden_models(stack: Stack, api: httpx.Client, model: str) -> None:
    with stack.client(stack.key("read", "ingest", "weights")) as reader:
        refused(ask(reader, model, kind="preview", remove={"ids": ["e1"]}), 403, "scope_missing")
    with stack.client(stack.key("analyse", models=[stack.model()])) as other:
        refused(ask(other, model, kind="preview", remove={"ids": ["e1"]}), 404, "model_not_found")
    with stack.client(stack.key("analyse", models=[model])) as analyst:
        assert ask(analyst, model, kind="preview", remove={"ids": ["e1"]}).status_code == 200


def test_a_posted_pool_is_stored_nowhere(stack: Stack, api: httpx.Client, model: str) -> None:
    pool = [[1234.5625, 8765.4375], [2345.0625, 9876.1875]]  # exact in single precision
    assert ask(api, model, kind="labelling", inputs=pool, top=1).status_code == 200
    traces = [str(number).encode() for row in pool for number in row]
    traces += [base64.b64encode(np.array(row, np.float32).tobytes())[:8] for row in pool]
    traces += [np.array(number, kind).tobytes() for row in pool for number in row for kind in (np.float32, np.float64)]
    stored = [path.read_bytes() for path in stack.folder.rglob("*") if path.is_file()]
    with stack.database.read() as session:
        for table in Base.metadata.sorted_tables:
            for row in session.execute(select(table)):
                stored += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    assert any(model.encode() in part for part in stored)  # the search finds what is there
    assert [trace for trace in traces if any(trace in part for part in stored)] == []


def test_a_repeated_request_returns_the_first_analysis(api: httpx.Client, model: str) -> None:
    body, headers = {"kind": "preview", "remove": {"ids": ["e1"]}}, {"Idempotency-Key": "analysis-1"}
    first, second = (api.post(f"/v1/models/{model}/analyses", json=body, headers=headers).json() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("kind", TARGETS)
def test_contributions_add_up_to_the_output(stack: Stack, api: httpx.Client, kind: str) -> None:
    target, ys = TARGETS[kind]
    name = trained(stack, api, X.tolist(), ys, target=target)
    outputs = predict(api, name, X.tolist(), explain=True)
    w = weights(api, name)["w"].reshape(-1, X.shape[1] + 1)
    f = np.c_[X, np.ones(len(X))] @ w.T
    expected = f[:, 0] if w.shape[0] == 1 else f.max(1) - f.mean(1)
    assert [sum(output["contributions"].values()) for output in outputs] == pytest.approx(expected, abs=1e-6)
    assert outputs[0]["contributions"].keys() == {*map(str, range(X.shape[1])), "(intercept)"}
    if w.shape[0] == 1:
        assert outputs[1]["contributions"]["0"] == pytest.approx(X[1, 0] * w[0, 0], abs=1e-6)


def test_contributions_of_a_table_are_those_of_its_columns(stack: Stack, api: httpx.Client) -> None:
    columns = [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid"]},
    ]
    given = [{"age": 20 + i, "plan": ["free", "paid"][i % 2]} for i in range(30)]
    name = trained(
        stack,
        api,
        given,
        [int(i % 3 == 0) for i in range(30)],
        input={"kind": "table", "columns": columns},
        architecture={"kind": "linear", "degree": 2},
    )
    output = predict(api, name, given[:1], explain=True)[0]
    assert output["contributions"].keys() == {"age", "plan", "(intercept)"}
    assert sum(output["contributions"].values()) == pytest.approx(np.log(output["mean"] / (1 - output["mean"])))


@pytest.mark.parametrize("kind", TARGETS)
def test_contributions_to_trees_add_up_to_the_output(stack: Stack, api: httpx.Client, kind: str) -> None:
    target, ys = TARGETS[kind]
    trees = {"kind": "trees", "trees": 6, "leaves": 4, "min_examples": 2}
    name = trained(stack, api, X.tolist(), ys, target=target, architecture=trees)
    for output in predict(api, name, X.tolist(), explain=True):
        found = output["contributions"]
        assert found.keys() == {*map(str, range(X.shape[1])), "(intercept)"}
        mean = output.get("mean", 0.5)
        p = np.array(list(output.get("probabilities", {}).values()) or [0.5, 0.5])
        outputs = {"number": mean, "count": np.log(abs(mean)), "binary": np.log(abs(mean / (1 - mean)))}
        outputs["classes"] = np.log(p.max()) - np.log(p).mean()
        assert sum(found.values()) == pytest.approx(outputs[kind], abs=1e-9)


def test_explanations_of_other_models_are_refused(stack: Stack, api: httpx.Client) -> None:
    kernel = {"kind": "kernel", "features": 8}
    name = trained(stack, api, X.tolist(), TARGETS["binary"][1], target={"kind": "binary"}, architecture=kernel)
    response = api.post(f"/v1/models/{name}/predictions", json={"inputs": X[:1].tolist(), "explain": True})
    refused(response, 422, "explanation_unsupported")


def test_removing_examples_without_a_label_deletes_the_analyses_that_name_them(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(policy={"certify": "never"})
    add(api, name, rows(30))
    stack.train(name)
    waiting = [{"id": f"p{i}", "x": [0.1 * i, 1.0], "y": None, "split": "train"} for i in range(3)]
    api.post(f"/v1/models/{name}/examples", json={"examples": waiting}).raise_for_status()
    labelling = ask(api, name, kind="labelling", top=3).json()
    preview = ask(api, name, kind="preview", remove={"ids": ["e1"]}).json()
    assert {row["id"] for row in labelling["result"]["rows"]} == {"p0", "p1", "p2"}
    place = f"/v1/models/{name}/analyses"
    api.post(f"/v1/models/{name}/removals", json={"ids": ["p1"]}).raise_for_status()
    assert api.get(f"{place}/{labelling['id']}").json()["code"] == "analysis_not_found"
    assert api.get(f"{place}/{preview['id']}").status_code == 200


def test_a_request_to_erase_a_person_deletes_the_analyses_that_name_the_examples(
    stack: Stack, api: httpx.Client
) -> None:
    name, person = stack.model(policy={"certify": "never"}), f"person {uuid.uuid4()}"
    add(api, name, rows(30))
    stack.train(name)
    waiting: list[dict[str, Any]] = [
        {"id": f"p{i}", "x": [0.1 * i, 1.0], "y": None, "split": "train"} for i in range(3)
    ]
    waiting[1]["subject"] = person
    api.post(f"/v1/models/{name}/examples", json={"examples": waiting}).raise_for_status()
    labelling = ask(api, name, kind="labelling", top=3).json()
    assert {row["id"] for row in labelling["result"]["rows"]} == {"p0", "p1", "p2"}
    api.post("/v1/erasures", json={"subject": person, "hold": True}).raise_for_status()
    refused(api.get(f"/v1/models/{name}/analyses/{labelling['id']}"), 404, "analysis_not_found")
    again = ask(api, name, kind="labelling", top=3).json()
    assert {row["id"] for row in again["result"]["rows"]} == {"p0", "p2"}
