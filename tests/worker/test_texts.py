"""Text models from end to end: raw texts in, features encoded once, an exact and certified head."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sqlalchemy import func, select

from core.models import catalog
from core.tables.ledger import Encoding
from tests.worker.deployment import DELTA, Deployment
from tests.worker.erasure_helpers import erase
from tests.worker.sklearn_oracle import fit
from tests.worker.texts import reviews

FEATURES = 64
HASHING = {"kind": "linear", "encoder": {"kind": "hashing", "features": FEATURES}}
SECRET = "zyzzyva"
"""A word that only the person to erase uses."""


def new_text_model(deployment: Deployment, **spec: Any) -> str:
    return deployment.new_model(**{"input": {"kind": "text"}, "architecture": HASHING, **spec})


def send(
    deployment: Deployment, name: str, texts: Sequence[str], labels: Sequence[Any], first: int = 0, **more: Any
) -> Any:
    rows = [{"id": f"e{first + i}", "x": x, "y": y, **more} for i, (x, y) in enumerate(zip(texts, labels, strict=True))]
    return deployment.post(f"/v1/models/{name}/examples", {"examples": rows})


def hashed(texts: Sequence[str], features: int = FEATURES) -> np.ndarray:
    """What scikit-learn makes of the texts."""
    return HashingVectorizer(n_features=features).transform(texts).toarray()


def count_encodings(deployment: Deployment, name: str) -> int:
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
        return session.scalar(select(func.count()).where(Encoding.model_id == model.id)) or 0


@pytest.mark.both_databases
def test_the_head_of_a_text_model_is_the_optimum_and_follows_every_change(deployment: Deployment) -> None:
    texts, labels = reviews(300)
    texts[7] = ""  # an empty text is a value
    name = new_text_model(deployment)
    person = f"writer of {name}"
    texts[:5] = [f"{SECRET} {text}" for text in texts[:5]]
    send(deployment, name, texts[:5], labels[:5], split="train", subject=person)
    send(deployment, name, texts[5:], labels[5:], first=5, split="train")
    assert deployment.adapted(name)["state"] == "succeeded"
    assert count_encodings(deployment, name) == 300

    def check(rows: list[int]) -> dict[str, Any]:
        version = deployment.champion(name)
        certificate = version["certificate"]
        truth = fit("binary", hashed([texts[i] for i in rows]), np.array([labels[i] for i in rows]), DELTA)
        assert certificate["scope"] == "head"
        assert np.linalg.norm(deployment.weights(name) - truth) <= certificate["bound"] + 1e-4
        return version

    check(list(range(300)))
    more, theirs = reviews(40, seed=1)
    texts, labels = texts + more, labels + theirs
    send(deployment, name, more, theirs, first=300, split="train")
    deployment.remove(name, range(50, 60))
    deployment.adapted(name)
    deployment.settled(name)
    left = [i for i in range(340) if not 50 <= i < 60]
    assert check(left)["kind"] == "adapted"
    assert deployment.datasets_agree(name)
    shown = deployment.get(f"/v1/models/{name}/examples/e7")
    assert (shown["x"], shown["y"]) == ("", labels[7])

    receipt = erase(deployment, person)
    assert receipt["models"][0]["deleted"]["examples"] == 5
    check(left[5:])
    assert count_encodings(deployment, name) <= 340 - 5
    if deployment.database.sqlite:
        for file in deployment.folder.rglob("*"):
            if file.is_file() and file.suffix != ".log":
                assert SECRET.encode() not in file.read_bytes(), file


def test_raw_texts_are_predicted_over_every_interface(deployment: Deployment) -> None:
    texts, labels = reviews(200)
    name = new_text_model(deployment)
    table = pa.table({"id": [f"e{i}" for i in range(200)], "text": texts, "y": labels})
    with deployment.client() as client:
        kinds = {
            "application/vnd.apache.arrow.stream": write_arrow(table[:100]),
            "text/csv": b"id,text,y\n" + b"".join(csv_line(i, texts[i], labels[i]) for i in range(100, 200)),
        }
        for kind, body in kinds.items():
            added = client.post(f"/v1/models/{name}/examples", content=body, headers={"content-type": kind})
            assert added.json()["accepted"] == 100, added.text
        assert deployment.adapted(name)["state"] == "succeeded"
        asked = ["great and quick, thank you", "broken, and late!", ""]
        w = deployment.weights(name)
        wanted = 1 / (1 + np.exp(-(hashed(asked) @ w[:-1] + w[-1])))
        outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": asked})["outputs"]
        np.testing.assert_allclose([output["mean"] for output in outputs], wanted, atol=1e-6)
        assert [output["class"] for output in outputs[:2]] == [1, 0]
        asking = {"inputs": asked, "explain": True}
        explained = deployment.post(f"/v1/models/{name}/predictions", asking)["outputs"]
        made = [output["contributions"] for output in explained]
        logits = np.log(wanted / (1 - wanted))
        np.testing.assert_allclose([sum(one.values()) for one in made], logits, atol=1e-4)
        assert list(made[0]) == ["great", "and", "quick", "thank", "you", "(intercept)"]
        unsure = deployment.post(f"/v1/models/{name}/predictions", {"inputs": asked, "uncertainty": True})["outputs"]
        assert all(output["interval"][0] < output["mean"] < output["interval"][1] for output in unsure)
        body, headers = write_arrow(pa.table({"text": asked})), {"content-type": "application/vnd.apache.arrow.stream"}
        bulk = client.post(f"/v1/models/{name}/predictions/bulk", content=body, headers=headers)
        np.testing.assert_allclose(pa.ipc.open_stream(bulk.content).read_all()["mean"].to_numpy(), wanted, atol=1e-6)
        tensor = {"name": "text", "shape": [3, 1], "datatype": "BYTES", "data": asked}
        inferred = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}).json()
        np.testing.assert_allclose(inferred["outputs"][0]["data"], wanted, atol=1e-6)
        exported = client.get(f"/v1/models/{name}/examples/export").content
        assert pa.ipc.open_stream(exported).read_all()["text"].to_pylist() == texts
        onnx = client.get(f"/v1/models/{name}/versions/1/onnx")
        assert (onnx.status_code, onnx.json()["code"]) == (409, "onnx_unsupported")


def write_arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def csv_line(i: int, text: str, label: int) -> bytes:
    return f'e{i},"{text}",{label}\n'.encode()


def test_analyses_encode_the_texts_that_they_are_sent(deployment: Deployment) -> None:
    texts, labels = reviews(150, seed=5)
    name = new_text_model(deployment)
    send(deployment, name, texts[:100], labels[:100], split="train")
    send(deployment, name, texts[100:130], labels[100:130], first=100, split="holdout")
    assert deployment.adapted(name)["state"] == "succeeded"
    place, new = f"/v1/models/{name}/analyses", texts[130:]
    means = deployment.post(f"/v1/models/{name}/predictions", {"inputs": new})["outputs"]

    def finished(**body: Any) -> dict[str, Any]:
        started = deployment.post(place, body)
        if "result" not in started:
            job = deployment.ended(started["job"])
            assert job["state"] == "succeeded", job
            started = deployment.get(f"{place}/{started['id']}")
        return dict(started["result"])

    chosen = finished(kind="labelling", inputs=new, top=5)["rows"]
    assert [row["mean"] for row in chosen] == pytest.approx([means[row["index"]]["mean"] for row in chosen], abs=1e-6)
    deployment.post(
        f"/v1/models/{name}/examples",
        {"examples": [{"id": f"p{i}", "x": x, "y": None, "split": "train"} for i, x in enumerate(new)]},
    )
    waiting = finished(kind="labelling", top=5)["rows"]
    assert {row["id"] for row in waiting} == {f"p{row['index']}" for row in chosen}

    row = finished(kind="influence", on={"inputs": new[:3]}, by="example", top=1)["rows"][0]
    kept = [i for i in range(100) if row["id"] != f"e{i}"]
    without = fit("binary", hashed([texts[i] for i in kept]), np.array([labels[i] for i in kept]), DELTA)
    before = fit("binary", hashed(texts[:100]), np.array(labels[:100]), DELTA)
    outputs = np.column_stack([hashed(new[:3]), np.ones(3)])
    change = 1 / (1 + np.exp(-outputs @ without)) - 1 / (1 + np.exp(-outputs @ before))
    assert row["effects"] == pytest.approx(change.tolist(), abs=1e-4)

    added = [
        {"id": f"n{i}", "x": x, "y": y, "split": "train"}
        for i, (x, y) in enumerate(zip(new, labels[130:], strict=True))
    ]
    previewed = finished(kind="preview", add=added)
    other = {"kind": "linear", "encoder": {"kind": "hashing", "features": 32}}
    with deployment.client() as api:
        refused = api.post(place, json={"kind": "preview", "change": {"architecture": other}})
    assert (refused.status_code, refused.json()["code"]) == (422, "preview_unsupported"), refused.text
    send(deployment, name, new, labels[130:], first=130, split="train")
    deployment.adapted(name)
    assert previewed["added"] == 20
    assert previewed["after"]["loss"] == pytest.approx(deployment.champion(name)["metrics"]["loss"], rel=1e-3)
