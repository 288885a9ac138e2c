"""A version loaded from MLflow, where this project is not, answers as the service does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from mlflow import MlflowClient

from core.tables.jobs import JobKind
from tests.core.encoders import projection
from tests.core.tracking.tracked_model import TrackedModel
from tests.stack import Stack

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).round(3)
SCORE = X @ [1.0, -2.0]
TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "job", "type": "category", "values": ["a", 2]},
        {"name": "y of birth", "type": "number"},
        {"name": "member", "type": "boolean"},
        {"name": "since", "type": "date"},
    ],
}
ROWS = [
    {
        "age": age,
        "job": job,
        "y of birth": int(2000 - i),
        "member": [True, None, False][i % 3],
        "since": [f"2024-03-{1 + i % 9:02}", None, f"2023-01-01T{i % 24:02}:30:00Z", "2020-02-29"][i % 4],
    }
    for i, (age, job) in enumerate(zip([20, 30.5, None, 50] * 10, ["a", 2, None, "new", "a"] * 8, strict=True))
]
TEXTS = [f"{'good' if score > 0 else 'bad'} number {i % 5}" if i else "" for i, score in enumerate(SCORE)]
PIXELS = RNG.integers(0, 256, size=(40, 1, 3, 2))

ENCODER, _ = projection(2, 4)
DIGEST = f"sha256:{hashlib.sha256(ENCODER).hexdigest()}"
MODELS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "binary": ({}, X.tolist(), (SCORE > 0).astype(int).tolist()),
    "classes": (
        {"input": TABLE, "target": {"kind": "classes", "values": ["low", 7, "high"]}},
        ROWS,
        [["low", 7, "high"][int(i)] for i in np.digitize(SCORE, [-1, 1])],
    ),
    "labels": (
        {"input": TABLE, "target": {"kind": "labels", "values": ["low", 7, "high"]}},
        ROWS,
        [[label for label, limit in (("low", -1), (7, 0), ("high", 1)) if score > limit] for score in SCORE],
    ),
    "trees": (
        {"input": TABLE, "architecture": {"kind": "trees", "trees": 6, "leaves": 5, "min_examples": 3}},
        ROWS,
        (SCORE > 0).astype(int).tolist(),
    ),
    "number": (
        {"target": {"kind": "number"}, "architecture": {"kind": "mlp", "hidden": [4]}, "training": {"max_epochs": 3}},
        X.tolist(),
        SCORE.tolist(),
    ),
    "text": (
        {"input": {"kind": "text"}, "architecture": {"kind": "linear", "encoder": {"kind": "hashing", "features": 32}}},
        TEXTS,
        (SCORE > 0).astype(int).tolist(),
    ),
    "encoder": (
        {"architecture": {"kind": "linear", "encoder": {"kind": "onnx", "digest": DIGEST}}},
        X.tolist(),
        (SCORE > 0).astype(int).tolist(),
    ),
    "image": (
        {"input": {"kind": "image", "shape": [1, 3, 2], "dtype": "uint8"}, "target": {"kind": "count"}},
        PIXELS.tolist(),
        (PIXELS.mean((1, 2, 3)) // 50).astype(int).tolist(),
    ),
}

# Nothing named `core` can be imported here: an editable install would let the project slip in.
ELSEWHERE = """
import json, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("core", "service", "worker", "lightgbm"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
import mlflow
import numpy as np
import pandas as pd

url, asked = json.load(sys.stdin)
mlflow.set_tracking_uri(url)
answers = {}
for kind, (name, inputs) in asked.items():
    model = mlflow.pyfunc.load_model(f"models:/{name}")
    if isinstance(inputs[0], dict) and "since" not in inputs[0]:
        forms = [pd.DataFrame(inputs)]
    elif isinstance(inputs[0], dict):
        frame = pd.DataFrame(inputs)
        dates = pd.to_datetime(frame["since"], utc=True, format="ISO8601")
        forms = [frame, frame[["y of birth", "since", "job", "member", "age"]]]
        forms += [frame.assign(since=dates), frame.assign(member=frame["member"].astype("boolean"))]
        forms.append(frame.assign(age=frame["age"].astype("Float64")))
    elif isinstance(inputs[0], str):
        forms = [inputs, pd.Series(inputs), pd.DataFrame({"text": inputs})]
    else:
        array = np.array(inputs)
        forms = [array, array.astype("float32"), pd.DataFrame(array.reshape(len(array), -1)).add_prefix("any")]
    answers[kind] = [model.predict(form).to_dict("records") for form in forms]
print(json.dumps(answers))
"""


def known(service: Stack, api: httpx.Client, spec: dict[str, Any], xs: list[Any], ys: list[Any]) -> TrackedModel:
    """A model that was trained on examples sent to the service."""
    tracked = TrackedModel(service.database, service.settings, service.model(**spec))
    examples = [{"id": str(i), "x": x, "y": y} for i, (x, y) in enumerate(zip(xs, ys, strict=True))]
    api.post(f"/v1/models/{tracked.name}/examples", json={"examples": examples}).raise_for_status()
    tracked.job(JobKind.ADAPT)
    return tracked


def elsewhere(url: str, asked: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What published models answer in a process of their own, which knows neither this project nor its database."""
    command = [sys.executable, "-I", "-c", ELSEWHERE]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=json.dumps([url, asked]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_the_champion_answers_as_the_service_does(service: Stack, server: str, tmp_path: Path) -> None:
    with service.client() as api:
        api.post("/v1/encoders", content=ENCODER).raise_for_status()
        models = {kind: known(service, api, *given) for kind, given in MODELS.items()}
        expected = {}
        for kind, tracked in models.items():
            answer = api.post(f"/v1/models/{tracked.name}/predictions", json={"inputs": MODELS[kind][1]})
            expected[kind] = answer.raise_for_status().json()["outputs"]
    models["binary"].publish(server)
    assert models["binary"].entries == []
    found = elsewhere(
        server, {kind: (f"{tracked.name}@champion", MODELS[kind][1]) for kind, tracked in models.items()}, tmp_path
    )
    for kind, forms in found.items():
        for outputs in forms:
            assert outputs == expected[kind], kind
    client = MlflowClient(server)
    run = client.get_run(client.get_model_version_by_alias(models["labels"].name, "champion").run_id)
    assert {f"holdout/{label}/log_loss" for label in ("low", 7, "high")} <= run.data.metrics.keys()


def test_versions_from_before_and_after_a_change_of_columns_and_classes_answer(
    service: Stack, server: str, tmp_path: Path
) -> None:
    age, years = {"name": "age", "type": "number"}, {"name": "years", "type": "number"}
    plan = {"name": "plan", "type": "category", "values": ["free", "paid"]}
    before = [{"age": 20 + i, "plan": ["free", "paid", None, "new"][i % 4]} for i in range(40)]
    after = [{"plan": ["free", "trial", None, "new"][i % 4], "years": 20 + i, "member": i % 2 == 0} for i in range(40)]
    spec = {"input": {"kind": "table", "columns": [age, plan]}}
    with service.client() as api:
        tracked = known(service, api, spec, before, [int(i % 5 > 1) for i in range(40)])
        columns = [{**plan, "values": ["free", "trial", "paid"]}, {**years, "was": "age"}]
        columns += [{"name": "member", "type": "boolean", "default": False}]
        target = {"kind": "classes", "values": ["no", "yes", "perhaps"], "merge": {"0": "no", "1": "yes"}}
        change = {"input": {"kind": "table", "columns": columns}, "target": target}
        api.post(f"/v1/models/{tracked.name}/changes", json=change).raise_for_status()
        new = [{"id": f"n{i}", "x": x, "y": ["no", "yes", "perhaps"][i % 3]} for i, x in enumerate(after)]
        api.post(f"/v1/models/{tracked.name}/examples", json={"examples": new}).raise_for_status()
        tracked.job(JobKind.ADAPT)
        asked = {"1": (f"{tracked.name}/1", before), "2": (f"{tracked.name}/2", after)}
        expected = {}
        for number, (_, inputs) in asked.items():
            body = {"inputs": inputs, "version": int(number)}
            answer = api.post(f"/v1/models/{tracked.name}/predictions", json=body).raise_for_status()
            expected[number] = answer.json()["outputs"]
    tracked.publish(server)
    found = elsewhere(server, asked, tmp_path)
    assert {number: forms[0] for number, forms in found.items()} == expected
