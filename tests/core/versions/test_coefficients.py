"""Coefficients by feature name, in raw and in standardised units."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.errors import Conflict
from core.kprior import Examples, State, train
from core.kprior.model.regularizers import regularizer_of
from core.versions.coefficients import INTERCEPT, Coefficient, coefficients, named_coefficients

TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid"]},
        {"name": "pay", "type": "number"},
    ],
}


def rows(n: int, seed: int, shift: float = 0.0, stretch: float = 1.0) -> Examples:
    """Age, plan and pay, some of them missing."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draw)
    x[:, 0] = 40 + shift + 12 * stretch * x[:, 0]
    x[:, 1] = torch.randint(0, 3, (n,), generator=draw).float()
    x[torch.rand(n, generator=draw) < 0.1, 0] = torch.nan
    y = (torch.rand(n, 1, generator=draw) < 0.5).double()
    return Examples(torch.arange(n), x, y)


def trained(seed: int = 0, shift: float = 0.0, stretch: float = 1.0, **more: Any) -> State:
    spec = {
        "input": TABLE,
        "target": {"kind": "binary"},
        "architecture": {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": 1.0, "penalize_bias": False},
        **more,
    }
    return train(spec, [rows(200, seed, shift, stretch)]).state


def by_name(found: tuple[int, list[Coefficient]] | None) -> dict[str, tuple[float | None, float | None]]:
    assert found is not None
    return {c.feature: (c.a, c.b) for c in found[1]}


def test_coefficients_are_the_weights_ordered_by_difference() -> None:
    one, other = trained(0), trained(0, regularizer={"kind": "l2", "delta": 9.0, "penalize_bias": False})
    found = coefficients(one, other)
    assert found is not None
    assert found[0] == len(found[1]) == len(one.w)
    apart = [abs((c.a or 0) - (c.b or 0)) for c in found[1]]
    assert apart == sorted(apart, reverse=True)
    names = by_name(found)
    order = ["age", "pay", "age is missing", "pay is missing", "plan = free", "plan = paid"]
    assert names.keys() == {*order, "plan is missing", INTERCEPT}
    assert [names[n][0] for n in order] == pytest.approx(one.w[:6].tolist())
    assert names[INTERCEPT] == pytest.approx((float(one.w[-1]), float(other.w[-1])))
    fewest = coefficients(one, other, limit=2)
    assert fewest is not None
    assert fewest == (found[0], found[1][:2])


def test_coefficients_are_compared_in_the_units_of_the_first_version() -> None:
    """By predictions: the second version's function, written in the first one's units, is the same function."""
    one, other = trained(0), trained(1, shift=30.0, stretch=4.0)
    assert not torch.equal(one.predictor.encoder.state_dict()["scale"], other.predictor.encoder.state_dict()["scale"])
    names = by_name(coefficients(one, other))
    order = ["age", "pay", "age is missing", "pay is missing", "plan = free", "plan = paid"]
    order += ["plan is missing", INTERCEPT]
    moved = torch.tensor([names[name][1] for name in order], dtype=torch.float64)
    x = rows(50, 2).x
    torch.testing.assert_close(one.predictor.outputs(moved, x), other.predictor.outputs(other.w, x))


def test_a_feature_that_one_architecture_lacks_has_no_coefficient_there() -> None:
    one, other = trained(), trained(architecture={"kind": "linear", "degree": 2})
    names = by_name(coefficients(one, other, limit=1000))
    a, b = names["age * pay"]
    assert a is None
    assert b is not None
    assert names["age"][0] == pytest.approx(float(one.w[0]))
    assert names[INTERCEPT] == pytest.approx((float(one.w[-1]), float(other.w[-1])))


def test_features_of_vectors_and_outputs_of_classes_are_named() -> None:
    spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "classes", "values": ["cat", "dog"]}}
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=draw)
    y = torch.nn.functional.one_hot((x[:, 0] > 0).long(), 2).double()
    more = {"architecture": {"kind": "linear", "degree": 1}}
    low, high = (
        train({**spec, **more, "regularizer": {"kind": "l2", "delta": d, "penalize_bias": True}}, [data]).state
        for d in (1.0, 5.0)
        for data in [Examples(torch.arange(50), x, y)]
    )
    found = coefficients(low, high)
    assert found is not None
    assert {(c.feature, c.target) for c in found[1]} == {
        (name, value) for name in ("x[0]", "x[1]", INTERCEPT) for value in ("cat", "dog")
    }


def test_a_network_has_no_coefficients() -> None:
    network = trained(architecture={"kind": "mlp", "hidden": [2]})
    assert coefficients(network, trained()) is None
    assert coefficients(trained(), network) is None


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_named_coefficients_give_the_outputs_from_raw_inputs(degree: int) -> None:
    state = trained(architecture={"kind": "linear", "degree": degree})
    x = rows(50, seed=5).x.double()
    missing, code = x.isnan(), torch.nn.functional.one_hot(x[:, 1].long(), 3).double()
    values = {"age": x[:, 0].nan_to_num(0), "pay": x[:, 2].nan_to_num(0)}
    values |= {"age is missing": missing[:, 0].double(), "pay is missing": missing[:, 2].double()}
    values |= {"plan = free": code[:, 0], "plan = paid": code[:, 1], "plan is missing": code[:, 2]}
    values[INTERCEPT] = torch.ones(50).double()
    outputs = torch.zeros(50).double()
    for item in named_coefficients(state):
        product = torch.ones(50).double()
        for name in item.feature.split(" * "):
            product = product * values[name]
        outputs += item.coefficient * product
    torch.testing.assert_close(outputs, state.predictor.outputs(state.w, x)[:, 0], rtol=1e-9, atol=1e-9)


def test_named_coefficients_as_standardised_are_the_weights_class_by_class() -> None:
    target = {"kind": "classes", "values": ["a", 7]}
    given = rows(60, 0)
    data = Examples(given.key, given.x, torch.cat([given.y, 1 - given.y], 1))
    spec = {**trained().spec, "target": target}
    state = train(spec, [data]).state
    found = named_coefficients(state)
    assert [item.standardised for item in found] == pytest.approx(state.w.tolist())
    assert [item.target for item in found] == ["a"] * 8 + [7] * 8
    assert found[7].feature == found[15].feature == INTERCEPT
    scale = float(state.predictor.encoder.scale[0])
    assert found[0].coefficient == pytest.approx(found[0].standardised / scale)


def test_pixels_are_named_and_bytes_are_in_raw_units() -> None:
    spec = {**trained().spec, "input": {"kind": "image", "shape": [1, 2, 2], "dtype": "uint8"}}
    x = torch.randint(0, 256, (80, 1, 2, 2), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    state = train(spec, [Examples(torch.arange(80), x, (x[:, 0, 0, :1] > 100).double())]).state
    found = {item.feature: item for item in named_coefficients(state)}
    assert found["x[0, 1, 0]"].coefficient * 255 == pytest.approx(found["x[0, 1, 0]"].standardised)


def test_networks_and_very_large_models_have_no_named_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    network = trained(architecture={"kind": "mlp", "hidden": [3]})
    with pytest.raises(Conflict) as refused:
        named_coefficients(network)
    assert refused.value.code == "model_not_linear"
    monkeypatch.setattr("core.versions.coefficients.MAX_NAMED", 5)
    with pytest.raises(Conflict) as refused:
        named_coefficients(trained())
    assert refused.value.code == "coefficients_too_many"


def test_raw_coefficients_can_be_the_target_of_another_models_regularizer() -> None:
    """The coefficients of one model as `toward` in the regularizer of another."""
    classes = {"target": {"kind": "classes", "values": ["a", "b"]}}
    for more, shape in (({}, 1), (classes, 2)):
        one, other = (trained_as(shape, shift, **more) for shift in (0.0, 300.0))
        assert not torch.equal(one.predictor.encoder.mean, other.predictor.encoder.mean)
        toward = [found.coefficient for found in named_coefficients(one)]
        mean = regularizer_of({"kind": "l2", "toward": toward}, other.predictor).toward
        assert mean is not None
        x = rows(50, seed=9).x
        torch.testing.assert_close(other.predictor.outputs(mean, x), one.predictor.outputs(one.w, x))


def trained_as(outputs: int, shift: float, **more: Any) -> State:
    spec = {**trained().spec, **more}
    data = rows(200, 1, shift, stretch=1 + shift)
    return train(spec, [Examples(data.key, data.x, torch.cat([data.y, 1 - data.y], 1)[:, :outputs])]).state
