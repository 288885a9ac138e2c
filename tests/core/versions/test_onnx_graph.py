"""onnxruntime predicts the same as the service, for every architecture and kind of input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from core.errors import Conflict
from core.inference.loaded_model import LoadedModel
from core.kprior import Examples, State, train
from core.kprior.model.tree_splits import NODE_TENSORS, LeafEncoder
from core.kprior.solvers import Training
from core.versions.onnx_export import to_onnx

ROWS = 40
TARGETS: dict[str, Any] = {
    "binary": {"kind": "binary"},
    "classes": {"kind": "classes", "values": ["cat", "dog", 7]},
    "numbered": {"kind": "classes", "values": [3, 1]},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
}
TABLE: Any = {
    "kind": "table",
    "columns": [
        {"name": "mean", "type": "number"},
        {"name": "class", "type": "category", "values": ["free", "paid", 3], "other": True},
        {"name": 'a "quoted" = constant_0', "type": "number"},
        {"name": "since", "type": "date"},
        {"name": "new", "type": "boolean"},
        {"name": "closed", "type": "category", "values": ["yes", "no"], "other": False},
    ],
}
NAMES = [column["name"] for column in TABLE["columns"]]
ARCHITECTURES = {
    **{str(degree): {"kind": "linear", "degree": degree} for degree in (1, 2, 3)},
    "rbf": {"kind": "kernel", "kernel": "rbf", "features": 20, "lengthscale": 2.0},
    "matern": {"kind": "kernel", "kernel": "matern", "features": 20, "nu": 2.5},
    "mlp": {"kind": "mlp", "hidden": [6, 5]},
    "trees": {"kind": "trees", "trees": 6, "leaves": 5, "min_examples": 3},
}
QUICK = Training(max_epochs=2)


def state_of(described: Any, architecture: Any, x: torch.Tensor, target: str = "binary") -> State:
    draw = torch.Generator().manual_seed(1)
    y = torch.randint(0, 2, (len(x), 1), generator=draw).double()
    if TARGETS[target]["kind"] == "classes":
        K = len(TARGETS[target]["values"])
        y = torch.nn.functional.one_hot(torch.arange(len(x)) % K, K).double()
    spec: Any = {"input": described, "target": TARGETS[target], "architecture": architecture}
    spec["regularizer"] = {"kind": "l2", "delta": 1.0}
    return train(spec, [Examples(torch.arange(len(x)), x, y)], training=QUICK).state


def run(state: State, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    session = onnxruntime.InferenceSession(to_onnx(state, "churn", 7))
    assert session.get_modelmeta().custom_metadata_map == {"model": "churn", "version": "7"}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def table_rows() -> tuple[torch.Tensor, dict[str, Any]]:
    """Codes as the service reads them, with missing and unseen values, and the same as the graph takes them."""
    i = torch.arange(ROWS)
    x = numbers(ROWS, 6)
    x[:, 0] = 1e6 + 50 * x[:, 0]
    x[:, 1] = torch.tensor([0, 1, 2, -1, torch.nan])[i % 5]
    x[::5, 2] = torch.nan
    x[:, 3] = 20_000 + 100 * x[:, 3]
    x[:, 4] = torch.tensor([0, 1, torch.nan])[i % 3]
    x[:, 5] = torch.tensor([0, 1, torch.nan])[i % 3]
    words = {1: ["free", "paid", "3", "never seen", ""], 5: ["yes", "no", ""]}
    texts = {NAMES[j]: np.array([[known[k % len(known)]] for k in range(ROWS)], object) for j, known in words.items()}
    return x, {**{name: x[:, j : j + 1].numpy() for j, name in enumerate(NAMES)}, **texts}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("kind", ["vector", "table"])
def test_the_graph_predicts_what_the_service_does(kind: str, architecture: Any, target: str) -> None:
    x, given = table_rows() if kind == "table" else (numbers(ROWS, 3), {})
    given = given or {"x": x.numpy()}
    described = TABLE if kind == "table" else {"kind": "vector", "dim": 3}
    state = state_of(described, architecture, x, target)
    found = run(state, given)
    expected = LoadedModel.from_state(state).predict_means(x.numpy())
    means = next(value for name, value in found.items() if name.startswith(("mean", "probabilities")))
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-5)
    if target in ("classes", "numbered"):
        values = TARGETS[target]["values"]
        named = [str(v) for v in values] if target == "classes" else values
        assert found["class_" if kind == "table" else "class"].tolist() == [named[i] for i in expected.argmax(1)]
    elif target == "binary":
        assert found["class_" if kind == "table" else "class"].tolist() == (expected[:, 0] > 0.5).astype(int).tolist()


@pytest.mark.parametrize("kind", ["vector", "table"])
def test_trees_that_treat_zeros_as_missing(kind: str) -> None:
    x, given = table_rows() if kind == "table" else (numbers(ROWS, 3), {})
    state = state_of(TABLE if kind == "table" else {"kind": "vector", "dim": 3}, ARCHITECTURES["trees"], x)
    encoder = state.predictor.encoder
    assert isinstance(encoder, LeafEncoder)
    sets = encoder.category_words > 0
    splits = dict(zip([*NODE_TENSORS, "words"], encoder.splits(), strict=True))
    encoder.set_splits({**splits, "zero_missing": ~sets, "missing_left": splits["threshold"] < 0})
    x[::3, 0], x[1::4, 2] = 0.0, -0.0
    given = {**given, **{NAMES[j]: x[:, j : j + 1].numpy() for j in (0, 2)}} if given else {"x": x.numpy()}
    expected = LoadedModel.from_state(state).predict_means(x.numpy())
    found = next(value for name, value in run(state, given).items() if name.startswith("mean"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_support_vector_machine_gives_scores() -> None:
    x = numbers(ROWS, 3)
    y = (x[:, :1] > 0.3).double()
    spec: Any = {"input": {"kind": "vector", "dim": 3}, "target": TARGETS["binary"], "loss": {"kind": "squared_hinge"}}
    spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    state = train(spec, [Examples(torch.arange(ROWS), x, y)]).state
    found = run(state, {"x": x.numpy()})
    scores = LoadedModel.from_state(state).predict_means(x.numpy())
    assert list(found) == ["score", "class"]
    np.testing.assert_allclose(found["score"], scores, rtol=1e-5, atol=1e-5)
    assert found["class"].tolist() == (scores[:, 0] > 0).astype(int).tolist()


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("kind", ["linear", "kernel", "mlp", "lenet5", "cifarnet"])
def test_the_graph_of_images_predicts_what_the_service_does(kind: str, dtype: str) -> None:
    x = numbers(ROWS, 2, 20, 24)
    x = (100 + 50 * x).clamp(0, 255).to(torch.uint8) if dtype == "uint8" else x
    state = state_of({"kind": "image", "shape": [2, 20, 24], "dtype": dtype}, {"kind": kind}, x, "classes")
    found = run(state, {"x": x.numpy()})["probabilities"]
    np.testing.assert_allclose(found, LoadedModel.from_state(state).predict_means(x.numpy()), rtol=1e-5, atol=1e-5)


def test_an_unsupported_layer_is_rejected() -> None:
    state = state_of({"kind": "vector", "dim": 3}, {"kind": "mlp", "hidden": [4]}, numbers(ROWS, 3))
    state.predictor.body[2] = torch.nn.Softplus()  # type: ignore[index]
    with pytest.raises(Conflict, match="Softplus") as refused:
        to_onnx(state, "churn", 7)
    assert refused.value.code == "onnx_unsupported"
