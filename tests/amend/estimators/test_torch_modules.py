"""torch modules become networks of the same layers, weights and buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from safetensors.torch import load
from torch import nn

from amend import EstimatorUnsupported
from amend.estimators import Import
from core.encoders.onnx_check import check_file
from core.kprior import AddData, Examples, Training, adapt, adopt, draw_from, train
from core.models.spec import SpecSchema
from core.versions.onnx_export import to_onnx
from tests.amend.estimators.rows import imported

BINARY = {"kind": "binary"}
THREE = {"kind": "classes", "values": ["a", "b", "c"]}


def trained(module: nn.Sequential, x: torch.Tensor) -> nn.Sequential:
    """The module with weights and statistics unlike its initial ones."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    module.train()
    for _ in range(3):
        module(x)
    return module.eval()


MODULES: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)),
        (4,),
        BINARY,
    ),
    "layer norm and GELU": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU()), nn.Linear(8, 3), nn.Softmax(dim=1)
        ),
        (4,),
        THREE,
    ),
    "other activations": (
        lambda: nn.Sequential(
            *(nn.Linear(4, 6), nn.GELU(approximate="tanh"), nn.Linear(6, 5), nn.SiLU(), nn.Identity()),
            *(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)),
        ),
        (4,),
        {"kind": "number"},
    ),
    "an activation that occurs twice": (
        lambda: nn.Sequential(nn.Linear(4, 6), *twice(nn.GELU()), nn.Linear(6, 1)),
        (4,),
        BINARY,
    ),
    "images": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, 3, stride=2), nn.ReLU(), nn.AvgPool2d(1), nn.Flatten(), nn.Linear(24, 1), nn.Sigmoid()),
        ),
        (1, 10, 10),
        BINARY,
    ),
    "adaptive pooling": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(18, 1)),
        (2, 7, 9),
        BINARY,
    ),
}


def twice(layer: nn.Module) -> list[nn.Module]:
    """A layer that occurs twice, as activations often do."""
    return [layer, nn.Linear(6, 6), layer]


def rows_of(shape: tuple[int, ...], target: dict[str, Any], n: int = 80) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(n, *shape, generator=draw)
    score = x.flatten(1)[:, 0] + x.flatten(1)[:, 1]
    y: Any = (score > 0).long().numpy()
    if target["kind"] == "classes":
        y = np.array(target["values"])[(score > 0.5).long() + (score > -0.5).long()]
    return {"x": x.numpy(), "y": y if target["kind"] != "number" else score.numpy()}


def spec_of(made: Import) -> Any:
    spec = {"input": made.input, "target": made.target, "architecture": made.architecture}
    return SpecSchema.model_validate({**spec, "regularizer": made.regularizer}).plain()


def adopted(made: Import, rows: dict[str, Any]) -> Any:
    assert made.tensors is not None
    tensors = load(made.tensors)
    buffers = {name.removeprefix("body."): t for name, t in tensors.items() if name != "w"}
    return adopt(spec_of(made), tensors["w"], [examples_of(made, rows)], len(rows["y"]), units=buffers)


def examples_of(made: Import, rows: dict[str, Any]) -> Examples:
    y = torch.tensor(np.asarray(rows["y"], np.float64))[:, None] if made.target["kind"] != "classes" else None
    if y is None:
        y = torch.tensor(np.stack([rows["y"] == value for value in made.target["values"]], 1)).double()
    return Examples(torch.arange(len(rows["x"])), torch.tensor(rows["x"]), y)


@pytest.mark.parametrize("name", MODULES)
def test_an_imported_module_gives_the_same_outputs_also_as_onnx(name: str) -> None:
    make, shape, target = MODULES[name]
    rows = rows_of(shape, target)
    module = trained(make(), torch.tensor(rows["x"]))
    made = imported(module, rows, outputs=target)
    assert made.architecture["kind"] == "sequential"
    state = adopted(made, rows).state
    assert len(state.w) == sum(p.numel() for p in module.parameters())  # no buffers
    f = state.predictor.outputs(state.w, torch.tensor(rows["x"]))
    means = state.predictor.family.mean(f).numpy()
    with torch.no_grad():
        wanted = module(torch.tensor(rows["x"]))
        ends = isinstance(module[-1], nn.Sigmoid | nn.Softmax)
        wanted = (wanted if ends else state.predictor.family.mean(wanted)).numpy()
    np.testing.assert_allclose(means, wanted, atol=1e-6)
    again = type(state).from_bytes(state.to_bytes())
    np.testing.assert_array_equal(again.predictor.outputs(again.w, torch.tensor(rows["x"])), f)
    session = onnxruntime.InferenceSession(to_onnx(again, "net", 1))
    np.testing.assert_allclose(session.run(None, {"x": rows["x"]})[0], wanted, atol=2e-6)


def test_statistics_stay_fixed_while_the_network_is_adapted_and_a_training_computes_them() -> None:
    make, shape, target = MODULES["batch norm"]
    rows = rows_of(shape, target, 200)
    made = imported(trained(make(), torch.tensor(rows["x"])), rows, outputs=target)
    base = adopted(made, rows)
    before = {name: tensor.clone() for name, tensor in base.state.predictor.constants().items()}
    more = examples_of(made, rows_of(shape, target, 30))
    more = Examples(more.key + 1000, more.x + 5, more.y)
    data = examples_of(made, rows)
    second = adapt(base.state, base.memory, [AddData([more])], draw=draw_from(data))
    for name, tensor in second.state.predictor.constants().items():
        assert torch.equal(tensor, before[name])

    fresh = train(spec_of(made), data.chunks(64), training=Training(max_epochs=5)).state
    first, norm = fresh.predictor.unflatten(fresh.w), fresh.predictor.body[1]
    hidden = data.x @ first["0.weight"].T + first["0.bias"]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    batches = torch.stack([hidden[i : i + 64].mean(0) for i in range(0, 200, 64)]).mean(0)
    torch.testing.assert_close(norm.running_mean, batches, rtol=1e-4, atol=1e-5)


def frozen(*layers: nn.Module) -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in layers]


@pytest.mark.parametrize("name", ["images", "vectors", "frame"])
def test_a_frozen_body_becomes_an_encoder_with_a_linear_head(name: str) -> None:
    shape = (1, 8, 8) if name == "images" else (4,)
    target = BINARY if name == "images" else THREE
    body = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Softplus(), nn.Dropout(0.5)]
    if name == "images":
        body = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    head = nn.Linear(6, 1 if target == BINARY else 3)
    rows = rows_of(shape, target)
    x = torch.tensor(rows["x"])
    module = trained(nn.Sequential(nn.Sequential(*body), head), x)
    module[0].requires_grad_(False)
    module.train()  # the statistics still count
    given: Any = rows
    if name == "frame":
        given = pd.DataFrame(rows["x"], columns=list("abcd")).assign(y=rows["y"])
    made = imported(module, given, outputs=target)
    assert made.architecture == {"kind": "linear", "encoder": {"kind": "onnx"}}
    assert made.input["kind"] == {"images": "image", "vectors": "vector", "frame": "table"}[name]
    assert made.content is not None
    assert module.training
    check_file(made.content)
    features = onnxruntime.InferenceSession(made.content).run(None, {"x": rows["x"]})[0]
    w = np.array(made.weights).reshape(len(target.get("values", [1])), -1)
    with torch.no_grad():
        wanted = module.eval()(x).numpy()
    np.testing.assert_allclose(features @ w[:, :-1].T + w[:, -1], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Softplus()), nn.Linear(8, 1)), "layer 1.0, a Softplus"),
        (nn.Sequential(*frozen(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))), "Layer 2 .* the last one, is frozen"),
        (
            nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *frozen(nn.Linear(8, 8)), nn.Linear(8, 1)),
            r"Layer 2 \(a Linear\) is frozen, but layer 0 \(a Linear\) is not",
        ),
        (nn.Sequential(*frozen(nn.Embedding(4, 8)), nn.Linear(8, 1)), "frozen layers cannot be converted to ONNX"),
        (nn.Sequential(*frozen(nn.Linear(4, 8)), nn.Linear(7, 1)), "the head needs 7 features"),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 1)), "layer 1, a BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 8), nn.GELU()), "last layer of the module must be a Linear"),
        (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), "has 2 outputs, but the target needs 1"),
        (nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 1)), r"cannot read rows of the shape \[4\]: .*4.*5"),
        (
            nn.Sequential(nn.Linear(4, 6), *twice(nn.Linear(6, 6)), nn.Linear(6, 1)),
            "Layers 1 and 3 are the same Linear, but Amend cannot share weights. Use two layers",
        ),
        (nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 1)), "Cannot import layer 0, an LSTM. Supported layers"),
        (nn.Linear(4, 1), "Pass a torch Sequential, or write a plugin"),
    ],
)
def test_errors_name_the_layer_or_the_shape(module: nn.Module, why: str) -> None:
    with pytest.raises(EstimatorUnsupported, match=why):
        imported(module, rows_of((4,), BINARY), outputs=BINARY)


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        (None, "for example {'kind': 'binary'}"),
        ("binary", "must be a target"),
        ({"kind": "classes", "classes": ["a"]}, "must list the values"),
    ],
)
def test_a_module_needs_a_target(outputs: Any, why: str) -> None:
    with pytest.raises(EstimatorUnsupported, match=why):
        imported(nn.Sequential(nn.Linear(4, 1)), rows_of((4,), BINARY), outputs=outputs)
