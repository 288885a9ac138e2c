"""A bundle is enough to recompute what a receipt says: scipy, given its rows, lands within the certified distance."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from scipy.special import expit, logsumexp, softmax

from amend.verification import Result, verify_bundle
from tests.worker.deployment import Deployment
from tests.worker.erasure_helpers import wait_for_end

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

Array = np.ndarray
BLOCK_ROWS = 256
ROWS = 300
"""More than one block."""
PERSON = "somebody in every model"
NUMBERS = {"input": {"kind": "vector", "dim": 4}}
TABLE = {"input": {"kind": "table", "columns": [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}]}}
WIDE = {"input": {"kind": "vector", "dim": 400}, "target": {"kind": "classes", "values": [0, 1, 2]}}
REMOVAL = {"epsilon": 1.0, "delta": 1e-3, "sigma": 2.0}
L2 = {"kind": "l2", "delta": 2.0}
SPECS: dict[str, dict[str, Any]] = {
    "bernoulli": {**TABLE, "target": {"kind": "binary"}, "class_weight": {"1": 2.0}},
    "labels": {**TABLE, "target": {"kind": "labels", "values": ["a", "b", "c"]}},
    "soft": {**NUMBERS, "target": {"kind": "binary"}},
    "categorical": {**WIDE, "regularizer": {"kind": "l2", "delta": 20.0}},
    "gaussian": {**NUMBERS, "target": {"kind": "number"}, "regularizer": {**L2, "toward": [1.0, 0, 0, 0, 0]}},
    "poisson": {**NUMBERS, "target": {"kind": "count"}},
    "squared_hinge": {**NUMBERS, "target": {"kind": "binary"}, "loss": "squared_hinge"},
    "huber": {**NUMBERS, "target": {"kind": "number"}, "loss": {"kind": "huber", "threshold": 0.7}},
    "kernel": {
        **NUMBERS,
        "target": {"kind": "binary"},
        "architecture": {"kind": "kernel", "kernel": "rbf", "features": 32, "lengthscale": 2.0},
    },
    "trees": {
        **NUMBERS,
        "target": {"kind": "binary"},
        "architecture": {"kind": "trees", "trees": 6, "leaves": 5},
    },
    "perturbed": {
        **NUMBERS,
        "target": {"kind": "binary"},
        "training": {"removal": REMOVAL},
        "regularizer": {**L2, "penalize_bias": True},
    },
    "network": {**NUMBERS, "target": {"kind": "binary"}, "architecture": {"kind": "mlp", "hidden": [4]}},
}


def examples_of(kind: str, n: int = ROWS) -> list[dict[str, Any]]:
    """Examples with weights; the first twelve are about the person."""
    rng = np.random.default_rng(7)
    spec = SPECS[kind]
    width = spec["input"].get("dim", 2)
    x = rng.normal(size=(n, width)) / np.sqrt(np.arange(1, width + 1))
    score = x[:, 0] - x[:, 1] + 0.3 * rng.normal(size=n)
    targets = {
        "binary": (score > 0).astype(int),
        "classes": (x[:, :3] + rng.gumbel(size=(n, 3))[:, : min(3, width)]).argmax(1) if width >= 3 else None,
        "number": score,
        "count": rng.poisson(np.exp(np.clip(score, -2, 2))),
    }
    if kind == "soft":
        targets["binary"] = expit(score)
    sets = [[label for label, limit in (("a", -0.5), ("b", 0.0), ("c", 0.7)) if one > limit] for one in score]
    y = sets if kind == "labels" else targets[spec["target"]["kind"]]
    assert y is not None
    named = spec["input"]["kind"] == "table"
    return [
        {
            "id": f"e{i}",
            "x": {"a": 50 + 9 * row[0], "b": row[1] / 100} if named else row.tolist(),
            "y": y[i] if kind == "labels" else y[i].item(),
            "weight": 1.0 + i % 3,
            "split": "train",
            **({"subject": PERSON} if i < 12 else {}),
        }
        for i, row in enumerate(x)
    ]


def bernoulli(y: Array, f: Array) -> tuple[float, Array]:
    return np.logaddexp(0, f) - y * f, expit(f) - y


def categorical(y: Array, f: Array) -> tuple[Array, Array]:
    return (logsumexp(f, axis=1) - (y * f).sum(1))[:, None], softmax(f, axis=1) - y


def gaussian(y: Array, f: Array) -> tuple[Array, Array]:
    return (f - y) ** 2 / 2, f - y


def poisson(y: Array, f: Array) -> tuple[Array, Array]:
    return np.exp(f) - y * f, np.exp(f) - y


def squared_hinge(y: Array, f: Array) -> tuple[Array, Array]:
    s = 2 * y - 1
    short = np.maximum(0, 1 - s * f)
    return short**2, -2 * s * short


def huber(y: Array, f: Array, threshold: float) -> tuple[Array, Array]:
    off, near = abs(f - y), np.minimum(abs(f - y), threshold)
    return near * (off - near / 2), np.clip(f - y, -threshold, threshold)


LOSSES: dict[str, Callable[..., Any]] = {
    loss.__name__: loss for loss in (bernoulli, categorical, gaussian, poisson, squared_hinge, huber)
}


def refit(objective: dict[str, Any], tensors: dict[str, Array], rows: dict[str, Array]) -> Array:
    """The minimum of the objective that a bundle states."""
    shape = tuple(objective["shape"])
    options = {"threshold": objective["threshold"]} if "threshold" in objective else {}

    def tensor(name: str) -> Array:
        return tensors[objective[name]].reshape(shape) if objective[name] else np.zeros(shape)

    delta, toward, perturbation = tensor("delta"), tensor("toward"), tensor("perturbation")
    x, v = features_of(rows, shape[1]), rows["sample_weights"][:, None]

    def evaluate(w: Array) -> tuple[float, Array]:
        matrix = w.reshape(shape)
        losses, residual = LOSSES[objective["family"]](rows["targets"], x @ matrix.T, **options)
        step = matrix - toward
        value = (v * losses).sum() + (delta * step**2).sum() / 2 + (perturbation * matrix).sum()
        return float(value), ((v * residual).T @ x + delta * step + perturbation).ravel()

    found = minimize(
        evaluate, np.zeros(delta.size), jac=True, method="L-BFGS-B", options={"maxiter": 9999, "ftol": 0, "gtol": 1e-9}
    )
    return np.asarray(found.x).reshape(shape)


def features_of(rows: dict[str, Array], width: int) -> Array:
    if "features" in rows:
        return rows["features"]
    sparse = csr_matrix((rows["data"], rows["indices"], rows["indptr"]), shape=(len(rows["targets"]), width))
    return sparse.toarray()


def root_of(rows: dict[str, Array], width: int) -> str:
    """The Merkle root of the rows."""
    x = features_of(rows, width)
    numbers = np.hstack([x, rows["targets"], rows["sample_weights"][:, None]])
    parts = [position.tobytes() + row.tobytes() for position, row in zip(rows["positions"], numbers, strict=True)]
    assert len(rows["salts"]) == -(-len(x) // BLOCK_ROWS)
    nodes = []
    for i, salt in enumerate(rows["salts"]):
        content = salt.tobytes() + b"".join(parts[i * BLOCK_ROWS : (i + 1) * BLOCK_ROWS])
        nodes.append(hashlib.sha256(b"\0" + hashlib.sha256(content).digest()).digest())

    def fold(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        k = 1 << ((len(part) - 1).bit_length() - 1)
        return hashlib.sha256(b"\1" + fold(part[:k]) + fold(part[k:])).digest()

    return fold(nodes).hex()


def without_shift(w: Array, family: str) -> Array:
    """A softmax does not depend on a constant in all biases."""
    if family != "categorical":
        return w
    w = w.copy()
    w[:, -1] -= w[:, -1].mean()
    return w


def check_offline(
    deployment: Deployment, content: bytes, acknowledgement: object, folder: Path, refits: int
) -> list[str]:
    """`amend verify` accepts the bundle, with the register's key and the acknowledgement; what it does not prove."""
    paths = {name: folder / name for name in ("bundle", "key", "head")}
    paths["bundle"].write_bytes(content)
    paths["key"].write_text(json.dumps(deployment.get("/v1/register/key")))
    paths["head"].write_text(json.dumps(acknowledgement))
    found = verify_bundle(**paths, refit=True)
    assert found.passed, [check for check in found.checks if check.result is not Result.PASSED]
    assert sum(check.what.startswith("Distance of model") for check in found.checks) == refits
    return found.unproven


def test_the_certified_distance_holds_for_a_refit_of_every_kind_of_model(
    deployment: Deployment, tmp_path: Path
) -> None:
    names = {}
    for kind, spec in SPECS.items():
        names[deployment.new_model(**{"regularizer": L2, **spec, "policy": {"certify": "always"}})] = kind
    for name, kind in names.items():
        deployment.post(f"/v1/models/{name}/examples", {"examples": examples_of(kind)})
    for name in names:
        assert deployment.adapted(name)["state"] == "succeeded"
    asked = deployment.post("/v1/erasures", {"subject": PERSON})
    erasure = wait_for_end(deployment, asked["id"], 180)
    assert erasure["state"] == "completed", erasure
    with deployment.client() as client:
        wanted = {"rows": True, "from": asked["acknowledgement"]["head"]["size"]}
        answer = client.get(f"/v1/erasures/{erasure['id']}/bundle", params=wanted).raise_for_status()
    # the rows are a copy of other people's data, which their receipts and notices have to list
    exported = deployment.get(f"/v1/audit?action=examples_exported&erasure={erasure['id']}&limit=100")["items"]
    assert {entry["model"] for entry in exported} == {name for name, kind in names.items() if kind != "network"}
    assert {entry["position"] for entry in exported} == {ROWS + 12}
    unproven = check_offline(deployment, answer.content, asked["acknowledgement"], tmp_path, len(SPECS) - 1)
    assert not any("stands by" in sentence for sentence in unproven)
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    envelope = json.loads(files["receipt.json"])
    statement = json.loads(base64.b64decode(envelope["payload"]))
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    for name, kind in names.items():
        found = json.loads(files[f"versions/{name}.json"])
        content = files[found["weights"]]
        digest = hashlib.sha256(content).digest()
        assert digest.hex() == found["sha256"]
        opened = hashlib.sha256(bytes.fromhex(found["salt"]) + digest).hexdigest()
        assert subjects[f"model/{name}/version/{found['version']}"] == opened
        objective, tensors = found["objective"], load(content)
        [signed] = [model for model in statement["predicate"]["models"] if model["model"] == name]
        assert (signed.get("objective"), signed.get("rows")) == (objective, found["rows"])
        if kind == "network":
            assert (objective, found["rows_file"]) == (None, None)
            continue
        rows = load(files[found["rows_file"]])
        assert len(rows["positions"]) == found["rows"]["count"] == ROWS - 12
        assert root_of(rows, objective["shape"][1]) == found["rows"]["root"]
        w = tensors[objective["weights"]].reshape(objective["shape"])
        best = refit(objective, tensors, rows)
        distance = np.linalg.norm(without_shift(w - best, objective["family"]))
        assert distance <= found["certificate"]["bound"] + 1e-6 * np.linalg.norm(best), kind
        assert np.linalg.norm(best) > 0.1
