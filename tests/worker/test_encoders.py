"""Models with ONNX encoders from end to end: the head is exact, also after changes of the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tests.core.encoders import model, projection, tensor, words
from tests.worker.deployment import DELTA, DIM, Deployment, problem
from tests.worker.erasure_helpers import ask, erase, wait_for_end
from tests.worker.sklearn_oracle import fit
from tests.worker.test_texts import new_text_model, send
from tests.worker.texts import OTHERS, WORDS, reviews

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def upload(deployment: Deployment, content: bytes, **params: Any) -> dict[str, Any]:
    with deployment.client() as client:
        made = client.post("/v1/encoders", content=content, params=params)
        assert made.status_code == 201, made.text
        return {"kind": "onnx", "digest": made.json()["digest"]}


def predict(deployment: Deployment, name: str, inputs: Any) -> list[float]:
    outputs = deployment.post(f"/v1/models/{name}/predictions", {"inputs": inputs})["outputs"]
    return [output["mean"] for output in outputs]


def run_export(deployment: Deployment, name: str, inputs: dict[str, Any]) -> np.ndarray:
    """What the exported ONNX file of the champion predicts."""
    with deployment.client() as client:
        file = client.get(f"/v1/models/{name}/versions/{deployment.champion(name)['version']}/onnx")
        assert file.status_code == 200, file.text
    made: np.ndarray = onnxruntime.InferenceSession(file.content).run(["mean"], inputs)[0]
    return made[:, 0]


def test_the_head_is_exact_and_a_new_encoder_is_a_change_of_the_model(deployment: Deployment) -> None:
    x, y = problem(300)
    content, first = projection(DIM, 6)
    encoder = upload(deployment, content)
    name = deployment.new_model(architecture={"kind": "linear", "encoder": encoder})
    deployment.add_examples(name, x, y, split="train")
    deployment.adapted(name)

    def check(features: np.ndarray, rows: list[int]) -> None:
        version = deployment.champion(name)
        truth = fit("binary", features[rows], y[rows], DELTA)
        assert version["certificate"]["scope"] == "head"
        assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-3
        w = deployment.weights(name)
        wanted = 1 / (1 + np.exp(-(features[:5] @ w[:-1] + w[-1])))
        np.testing.assert_allclose(predict(deployment, name, x[:5].tolist()), wanted, atol=1e-6)
        np.testing.assert_allclose(run_export(deployment, name, {"x": x[:5].astype(np.float32)}), wanted, atol=1e-6)

    everything = list(range(300))
    check(np.tanh(x @ first), everything)
    deployment.remove(name, range(10))
    deployment.adapted(name)
    deployment.settled(name)
    check(np.tanh(x @ first), everything[10:])
    assert deployment.champion(name)["kind"] == "adapted"
    other, second = projection(DIM, 8, seed=1)
    architecture = {"kind": "linear", "encoder": upload(deployment, other)}
    job = deployment.post(f"/v1/models/{name}/changes", {"architecture": architecture})["job"]
    assert deployment.ended(job)["state"] == "succeeded"
    check(np.tanh(x @ second), everything[10:])
    assert deployment.champion(name)["method"] == "retrain"  # the old head has another number of weights
    assert deployment.datasets_agree(name)
    # the first encoder again: nothing has to be encoded once more
    deployment.post(f"/v1/models/{name}/changes", {"architecture": {"kind": "linear", "encoder": encoder}})
    deployment.adapted(name)
    deployment.settled(name)
    check(np.tanh(x @ first), everything[10:])
    # as many features: the old head is the start
    newer, third = projection(DIM, 6, seed=5)
    architecture = {"kind": "linear", "encoder": upload(deployment, newer)}
    deployment.post(f"/v1/models/{name}/changes", {"architecture": architecture})
    deployment.adapted(name)
    deployment.settled(name)
    check(np.tanh(x @ third), everything[10:])
    assert (deployment.champion(name)["kind"], deployment.champion(name)["method"]) == ("adapted", "warm")
    assert deployment.datasets_agree(name)


def test_a_column_transformer_of_scikit_learn_is_an_encoder(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(40, 12, 300), "plan": rng.choice(["free", "paid", "trial"], 300)})
    frame.loc[::7, "age"] = np.nan
    y = (rng.random(300) < np.where(frame["plan"] == "paid", 0.8, 0.3)).astype(int)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    transformer = ColumnTransformer(
        [("n", numbers, ["age"]), ("c", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["plan"])]
    ).fit(frame)
    types = [("age", FloatTensorType([None, 1])), ("plan", StringTensorType([None, 1]))]
    content = to_onnx(transformer, initial_types=types, target_opset=17).SerializeToString()
    encoder = upload(deployment, content, trained_on="examples")
    columns = [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid", "trial"]},
    ]
    architecture = {"kind": "linear", "encoder": encoder}
    name = deployment.new_model(input={"kind": "table", "columns": columns}, architecture=architecture)
    rows = [{"age": None if age != age else age, "plan": plan} for age, plan in frame.itertuples(index=False)]
    examples = [{"id": f"e{i}", "x": x, "y": int(y[i]), "split": "train"} for i, x in enumerate(rows)]
    deployment.post(f"/v1/models/{name}/examples", {"examples": examples})
    deployment.adapted(name)
    truth = fit("binary", transformer.transform(frame), y, DELTA)
    np.testing.assert_allclose(deployment.weights(name), truth, atol=2e-3)
    asked = [*rows[:10], {"age": 30, "plan": "never seen"}]
    given = pd.DataFrame(asked)
    w = deployment.weights(name)
    wanted = 1 / (1 + np.exp(-(transformer.transform(given) @ w[:-1] + w[-1])))
    np.testing.assert_allclose(predict(deployment, name, asked), wanted, atol=1e-6)
    tensors = {"age": given[["age"]].to_numpy(np.float32), "plan": given[["plan"]].to_numpy(object)}
    np.testing.assert_allclose(run_export(deployment, name, tensors), wanted, atol=1e-6)
    assert deployment.champion(name)["spec"]["architecture"]["encoder"]["trained_on"] == "examples"


def test_a_row_that_cannot_be_encoded_is_reported_and_the_others_are_trained_on(deployment: Deployment) -> None:
    from onnx import TensorProto, helper

    # 1 / x is not finite for 0
    given, made = tensor("x", TensorProto.FLOAT, [None, DIM]), tensor("f", TensorProto.FLOAT, [None, DIM])
    encoder = upload(deployment, model([helper.make_node("Reciprocal", ["x"], ["f"])], [given], [made]))
    rng = np.random.default_rng(1)
    x, y = 1 + rng.random((200, DIM)).astype(np.float32), rng.integers(0, 2, 200)
    x[[3, 50], 1] = 0
    name = deployment.new_model(architecture={"kind": "linear", "encoder": encoder})
    deployment.add_examples(name, x, y, split="train")
    assert deployment.adapted(name)["state"] == "succeeded"
    good = [i for i in range(200) if i not in (3, 50)]
    np.testing.assert_allclose(deployment.weights(name), fit("binary", 1 / x[good], y[good], DELTA), atol=2e-3)
    failed = deployment.get(f"/v1/models/{name}/examples?state=encoding_failed")["items"]
    assert [row["id"] for row in failed] == ["e3", "e50"]
    assert deployment.get(f"/v1/models/{name}")["counts"]["encoding_failed"] == 2
    with deployment.client() as client:
        refused = client.post(f"/v1/models/{name}/predictions", json={"inputs": [x[0].tolist(), x[3].tolist()]})
        assert (refused.status_code, refused.json()["code"]) == (422, "encoding_failed")
        assert refused.json()["errors"][0]["loc"] == ["inputs", 1]
    deployment.remove(name, [3, 10])
    deployment.adapted(name)
    deployment.settled(name)
    version = deployment.champion(name)
    assert version["kind"] == "adapted"
    good.remove(10)
    assert np.linalg.norm(deployment.weights(name) - fit("binary", 1 / x[good], y[good], DELTA)) <= (
        version["certificate"]["bound"] + 1e-3
    )
    assert deployment.get(f"/v1/models/{name}")["counts"]["encoding_failed"] == 1


def test_words_are_counted_by_an_encoder_in_a_process_of_its_own(deployment: Deployment) -> None:
    vocabulary = sorted({*OTHERS, *WORDS[0], *WORDS[1]})
    encoder = upload(deployment, words(vocabulary))
    texts, labels = reviews(200)
    name = new_text_model(deployment, architecture={"kind": "linear", "encoder": encoder})
    send(deployment, name, texts[:10], labels[:10], subject=f"writer of {name}", split="train")
    send(deployment, name, texts[10:], labels[10:], first=10, split="train")
    deployment.adapted(name)
    counts = np.array([[text.split().count(word) for word in vocabulary] for text in texts], float)
    np.testing.assert_allclose(deployment.weights(name), fit("binary", counts, np.array(labels), DELTA), atol=2e-3)
    erase(deployment, f"writer of {name}")
    truth = fit("binary", counts[10:], np.array(labels[10:]), DELTA)
    np.testing.assert_allclose(deployment.weights(name), truth, atol=2e-3)


def test_an_encoder_fitted_on_examples_must_be_replaced_before_an_erasure(deployment: Deployment) -> None:
    x, y = problem(200)
    old, _ = projection(DIM, 4, seed=2)
    architecture = {"kind": "linear", "encoder": upload(deployment, old, trained_on="examples")}
    name = deployment.new_model(architecture=architecture)
    person = f"person of {name}"
    deployment.add_examples(name, x[:10], y[:10], split="train", subject=person)
    deployment.add_examples(name, x[10:], y[10:], first=10, split="train")
    deployment.adapted(name)
    id = ask(deployment, person)
    erasure = wait_for_end(deployment, id)
    assert erasure["state"] == "failed"
    assert erasure["models"][0]["error"]["code"] == "encoder_required"
    new, weights = projection(DIM, 4, seed=3)
    changed = {"kind": "linear", "encoder": upload(deployment, new, trained_on="examples")}
    deployment.post(f"/v1/models/{name}/changes", {"architecture": changed})
    deployment.post(f"/v1/erasures/{id}/retry")
    erasure = wait_for_end(deployment, id)
    assert erasure["state"] == "completed", erasure
    [part] = deployment.get(erasure["receipt"])["models"]
    assert part["encoder"] == {"kind": "onnx", "digest": changed["encoder"]["digest"], "trained_on": "examples"}
    assert "may hold traces" not in part["words"]
    truth = fit("binary", np.tanh(x[10:] @ weights), y[10:], DELTA)
    np.testing.assert_allclose(deployment.weights(name), truth, atol=2e-3)
    with deployment.client() as client:  # all versions that used the first encoder are purged
        assert client.delete(f"/v1/encoders/{architecture['encoder']['digest']}").status_code == 204


def test_the_receipt_names_the_encoder_that_may_hold_traces_if_the_policy_says_so(deployment: Deployment) -> None:
    x, y = problem(200)
    content, _ = projection(DIM, 4, seed=4)
    architecture = {"kind": "linear", "encoder": upload(deployment, content, trained_on="examples")}
    name = deployment.new_model(architecture=architecture, policy={"erasure": {"encoder": "report"}})
    deployment.add_examples(name, x[:10], y[:10], split="train", subject=f"person of {name}")
    deployment.add_examples(name, x[10:], y[10:], first=10, split="train")
    deployment.adapted(name)
    [part] = erase(deployment, f"person of {name}")["models"]
    assert "a retrain of the head without this data" in part["words"]
    assert "may hold traces" in part["words"]
    assert part["certificate"]["scope"] == "head"
    assert part["encoder"]["trained_on"] == "examples"
