"""Weights that somebody else found: what they lack of an optimum is carried, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.kprior import AddData, Examples, RemoveData, SolverError, adapt, adopt, refine, train

SPEC: Any = {
    "input": {"kind": "vector", "dim": 3},
    "target": {"kind": "binary"},
    "architecture": {"kind": "linear"},
    "regularizer": {"kind": "l2", "delta": 1.0},
}
TARGETS: dict[str, Any] = {
    "binary": {"kind": "binary"},
    "classes": {"kind": "classes", "values": [0, 1, 2]},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
}


def rows(kind: str, n: int, first: int = 0, dim: int = 3) -> Examples:
    draw = torch.Generator().manual_seed(first)
    x = torch.randn(n, dim, generator=draw, dtype=torch.float64)
    f = x[:, :1] - 0.5 * x[:, 1:2]
    noise = torch.rand(n, 1, generator=draw)
    y = {
        "binary": (noise < torch.sigmoid(f)).double(),
        "classes": torch.nn.functional.one_hot((3 * noise[:, 0]).long(), 3).double(),
        "number": f + noise,
        "count": torch.floor(2 * noise * f.exp()),
    }[kind]
    return Examples(torch.arange(first, first + n), x, y)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("off", [0.0, 0.05, 0.3])
def test_the_bound_covers_the_truth_and_a_later_change_is_within_it(kind: str, off: float) -> None:
    spec = {**SPEC, "target": TARGETS[kind]}
    data = rows(kind, 300)
    trained = train(spec, [data]).state.w
    w = trained + off * torch.randn(trained.shape, generator=torch.Generator().manual_seed(1), dtype=trained.dtype)
    found = adopt(spec, w, [data], 300)
    assert found.cost.data_passes == 1
    x = data.x[:20]
    predictor = found.state.predictor
    means = [predictor.family.mean(predictor.outputs(v, x)) for v in (found.state.w, w)]
    torch.testing.assert_close(*means)
    assert found.certificate is not None
    assert float((found.state.w - trained).norm()) <= found.certificate.bound + 1e-9
    more, gone = rows(kind, 20, 1000), data.take(data.key < 15)
    second = adapt(found.state, found.memory, [AddData([more]), RemoveData([gone])])
    left = data.take(data.key >= 15)
    both = Examples(torch.cat([left.key, more.key]), torch.cat([left.x, more.x]), torch.cat([left.y, more.y]))
    truth = train(spec, [both]).state.w
    assert second.certificate is not None
    assert float((second.state.w - truth).norm()) <= second.certificate.bound + 1e-9


def test_an_imported_wide_model_is_refined_from_its_weights() -> None:
    spec = {**SPEC, "input": {"kind": "vector", "dim": 400}, "target": TARGETS["classes"]}
    data = rows("classes", 500, dim=400)
    trained = train(spec, [data])
    found = adopt(spec, trained.state.w + 0.01, [data], 500)
    measured = refine(found.state, found.memory, [data], tolerance=0.005, rounds=5)
    assert measured.certificate.relative <= 0.005
    assert trained.certificate is not None
    apart = float((measured.state.w - trained.state.w).norm())
    assert apart <= measured.certificate.bound + trained.certificate.bound


def test_a_state_of_imported_weights_is_stored_and_read_again() -> None:
    spec = {**SPEC, "architecture": {"kind": "mlp", "hidden": [4]}}
    w = torch.linspace(-1, 1, 21)
    found = adopt(spec, w, [rows("binary", 50)], 50)
    again = type(found.state).from_bytes(found.state.to_bytes())
    assert torch.equal(again.w, w)
    assert found.certificate is None


def test_an_imported_table_model_keeps_its_units() -> None:
    columns = [{"name": "a", "type": "number"}, {"name": "b", "type": "number"}]
    spec = {**SPEC, "input": {"kind": "table", "columns": columns}}
    data = rows("binary", 50)
    data = Examples(data.key, data.x[:, :2], data.y)
    units = torch.tensor([5.0, -1.0]).double(), torch.tensor([3.0, 0.7]).double()
    state = adopt(spec, torch.ones(5), [data], 50, units=units).state
    z = state.predictor.encode(data.x)
    torch.testing.assert_close(z[:, :2], (data.x - units[0]) / units[1])
    for wrong in ((units[0][:1], units[1]), (units[0], 0 * units[1]), (units[0] * torch.inf, units[1])):
        with pytest.raises(ValueError, match=r"[Uu]nits|scales"):
            adopt(spec, torch.ones(5), [data], 50, units=wrong)
    with pytest.raises(ValueError, match="Only the number columns"):
        adopt(SPEC, torch.ones(4), [rows("binary", 50)], 50, units=units)


def test_weights_that_are_not_the_models_are_refused() -> None:
    data = [rows("count", 50)]
    spec = {**SPEC, "target": {"kind": "count"}}
    with pytest.raises(ValueError, match="This model has 4 weights, but 3 were given"):
        adopt(spec, torch.ones(3), data, 50)
    with pytest.raises(ValueError, match="not a finite number"):
        adopt(spec, torch.tensor([0, 0, 0, torch.nan]), data, 50)
    with pytest.raises(SolverError, match="no finite loss"):
        adopt(spec, torch.full((4,), 1e4), data, 50)


def test_where_no_row_is_within_the_margin_the_penalty_alone_holds_the_weights() -> None:
    x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    data = Examples(torch.arange(4), x, (x > 0).double())
    penalty = {"kind": "l2", "delta": 1.0, "penalize_bias": True}
    spec = {**SPEC, "input": {"kind": "vector", "dim": 1}, "loss": {"kind": "squared_hinge"}, "regularizer": penalty}
    found = adopt(spec, torch.tensor([5.0, 0.0]), [data], 4)
    assert found.certificate is not None
    # |gradient| / delta, and the rows hold more than the penalty on the way
    assert float((found.state.w - train(spec, [data]).state.w).norm()) <= found.certificate.bound <= 5.0 + 1e-6
