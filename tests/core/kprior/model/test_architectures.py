"""Bodies: shapes, options, images too small for them, and plugins by entry point."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.kprior.model import architectures
from core.kprior.model.architectures import architecture_of
from core.kprior.model.predictor import Predictor
from tests.core.kprior.problems import spec_of, target_of


@pytest.mark.parametrize(
    ("spec", "shape", "parameters"),
    [
        ({"kind": "linear"}, (5,), 3 * 6),
        ({"kind": "linear", "degree": 2}, (5,), 3 * 21),
        ({"kind": "linear"}, (2, 3, 4), 3 * 25),
        ({"kind": "kernel"}, (5,), 3 * 1025),
        ({"kind": "kernel", "kernel": "matern", "features": 6}, (1, 8, 8), 3 * 7),
        ({"kind": "mlp"}, (5,), 6 * 100 + 101 * 3),
        ({"kind": "mlp", "hidden": [7, 4]}, (5,), 6 * 7 + 8 * 4 + 5 * 3),
        ({"kind": "mlp", "hidden": []}, (5,), 6 * 3),
        ({"kind": "mlp", "hidden": [7]}, (1, 8, 8), 65 * 7 + 8 * 3),
        # Zenke et al. 2017, Table 1 of their supplement: 32, 32, 64, 64 filters of 3x3, then 512 units
        ({"kind": "cifarnet"}, (3, 32, 32), 896 + 9248 + 18496 + 36928 + (2304 + 1) * 512 + 513 * 3),
        # the paper's Appendix E.1: 6 and 16 filters of 5x5, then 120 and 84 units
        ({"kind": "lenet5"}, (3, 32, 32), 456 + 2416 + 401 * 120 + 121 * 84 + 85 * 3),
        ({"kind": "lenet5"}, (1, 28, 28), 156 + 2416 + 257 * 120 + 121 * 84 + 85 * 3),
    ],
    ids=str,
)
def test_outputs_and_parameters_are_as_many_as_described(
    spec: dict[str, Any], shape: tuple[int, ...], parameters: int
) -> None:
    body = architecture_of(spec, shape, 3)
    assert body(torch.randn(2, *shape)).shape == (2, 3)
    assert sum(p.numel() for p in body.parameters()) == parameters


@pytest.mark.parametrize("kind", ["cifarnet", "lenet5"])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 4, 32), (12,), (3, 32)])
def test_images_too_small_or_no_images_are_refused(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="[Ii]mage"):
        architecture_of({"kind": kind}, shape, 2)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kind": "transformer"},
        {"kind": "linear", "depth": 2},
        {"kind": "linear", "degree": 0},
        {"kind": "linear", "degree": "two"},
        {"kind": "linear", "degree": 100},
        {"kind": "linear", "features": []},
        {"kind": "linear", "features": [5]},
        {"kind": "linear", "features": [-1]},
        {"kind": "linear", "features": [0.5]},
        {"kind": "linear", "features": "all"},
        {"kind": "kernel", "kernel": "cubic"},
        {"kind": "kernel", "features": 0},
        {"kind": "kernel", "features": 7},
        {"kind": "kernel", "features": 10**9},
        {"kind": "kernel", "features": [0, 1]},
        {"kind": "kernel", "features": 2.5},
        {"kind": "kernel", "lengthscale": 0},
        {"kind": "kernel", "lengthscale": float("inf")},
        {"kind": "kernel", "nu": 1.5},
        {"kind": "kernel", "kernel": "matern", "nu": 1.0},
        {"kind": "kernel", "seed": -1},
        {"kind": "mlp", "hidden": [0]},
        {"kind": "mlp", "hidden": 5},
        {"kind": "mlp", "hidden": ["many"]},
        {"kind": "mlp", "hidden": [2.5]},
        {"kind": "mlp", "width": 10},
        {"kind": "cifarnet", "width": 10},
        {"kind": "plugin"},
        {"kind": "plugin", "name": "nobody-offers-this"},
    ],
    ids=str,
)
def test_bad_architectures_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        architecture_of(spec, (5,), 1)


class Backwards(nn.Module):
    """A plugin whose layers are defined in another order than they are used in."""

    def __init__(self, shape: tuple[int, ...], outputs: int, width: int = 4) -> None:
        super().__init__()
        self.last = nn.Linear(width, outputs)
        self.first = nn.Linear(shape[0], width)

    def forward(self, z: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(z)))


class FakeEntryPoint:
    def load(self) -> type[Backwards]:
        return Backwards


def offer_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package with the entry point `backwards` were installed."""

    def entry_points(*, group: str, name: str) -> list[FakeEntryPoint]:
        return [FakeEntryPoint()] if (group, name) == ("amend.architectures", "backwards") else []

    monkeypatch.setattr(architectures, "entry_points", entry_points)


def test_plugins_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_plugin(monkeypatch)
    body = architecture_of({"kind": "plugin", "name": "backwards", "width": 6}, (5,), 2)
    assert isinstance(body, Backwards)
    assert body(torch.zeros(1, 5)).shape == (1, 2)
    with pytest.raises(ValueError, match="options"):
        architecture_of({"kind": "plugin", "name": "backwards", "colour": 6}, (5,), 2)


def test_weights_are_an_argument_and_views_of_one_vector() -> None:
    predictor = Predictor(spec_of("classes", 4, {"kind": "mlp", "hidden": [3]}), seed=1)
    w, x = predictor.initial_weights(), torch.randn(6, 4)
    assert w.shape == (predictor.size,) == (5 * 3 + 4 * 3,)
    layers = predictor.unflatten(w)
    by_hand = torch.relu(x @ layers["1.weight"].T + layers["1.bias"]) @ layers["3.weight"].T + layers["3.bias"]
    torch.testing.assert_close(predictor.outputs(w, x), by_hand)
    assert torch.equal(predictor.initial_weights(), Predictor(predictor.spec, seed=1).initial_weights())
    assert not torch.equal(w, Predictor(predictor.spec, seed=2).initial_weights())
    assert int(predictor.bias().sum()) == 3 + 3


@pytest.mark.parametrize("architecture", [{"kind": "linear", "degree": 2}, {"kind": "mlp", "hidden": [3]}])
def test_jacobian_is_that_of_autograd(architecture: dict[str, Any]) -> None:
    predictor = Predictor(spec_of("classes", 3, architecture))
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(predictor.size, generator=generator).to(predictor.dtype)
    x = torch.randn(5, 3, generator=generator)
    truth = torch.autograd.functional.jacobian(lambda w: predictor.outputs(w, x), w)
    torch.testing.assert_close(predictor.jacobian(w, x), truth)


def test_only_linear_models_have_features() -> None:
    spec = {**spec_of("binary", 3, {"kind": "mlp", "hidden": [3]}), "target": target_of("binary")}
    with pytest.raises(TypeError, match="linear"):
        Predictor(spec).features(torch.zeros(1, 3))
