"""Networks: changes to and from linear models, and what is measured of them."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from core.kprior import (
    ChangeModel,
    ChangeRegularizer,
    Examples,
    MemoryPolicy,
    RemoveData,
    Result,
    Training,
    adapt,
    certify,
    refine,
    train,
)
from core.kprior.data.random_samples import draw_from
from tests.core.kprior.problems import EVERYTHING, FAMILIES, LINEAR, TENTH, examples_of, l2, rows, spec_of, without

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [30]}
TRAINING = Training(max_epochs=60, batch_size=64, learning_rate=0.005)
SHORT = Training(max_epochs=2, batch_size=16)


@cache
def digits() -> tuple[Examples, Examples]:
    """1000 rows to learn from and 400 to judge by; images of 8x8, ten classes."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    labels = torch.nn.functional.one_hot(torch.from_numpy(y), 10).float()
    data = Examples(torch.arange(len(x)), torch.from_numpy(x).float()[order] / 16, labels[order])
    return rows(data, 0, 1000), rows(data, 1000, 1400)


def digit_spec(architecture: dict[str, Any], delta: float = 1.0) -> dict[str, Any]:
    return {
        "input": {"kind": "vector", "dim": 64},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": l2(delta),
    }


@cache
def digit_base(kind: str, fraction: float) -> Result:
    """Trained on 800 digits."""
    data, _ = digits()
    policy = MemoryPolicy(fraction=fraction, cap=10**9)
    architecture = MLP if kind == "mlp" else LINEAR
    return train(digit_spec(architecture), rows(data, 0, 800).chunks(200), policy=policy, training=TRAINING)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("old", "new"), [(LINEAR, MLP), (MLP, LINEAR)], ids=["linear_to_mlp", "mlp_to_linear"])
def test_every_family_changes_between_linear_and_network(kind: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    data = examples_of(kind, 120, 3)
    options = {"policy": TENTH, "training": SHORT, "draw": draw_from(data)}
    base = train(spec_of(kind, 3, old), data.chunks(50), policy=TENTH, training=SHORT)
    adapted = adapt(base.state, base.memory, [ChangeModel(new)], **options)
    assert bool(adapted.state.w.isfinite().all())
    assert adapted.state.predictor.linear == (new is LINEAR)
    again = adapt(adapted.state, adapted.memory, [ChangeRegularizer(l2(2.0))], **options)
    assert again.state.count == 120


def test_linear_student_of_a_network_is_the_fit_to_its_soft_labels() -> None:
    """With all in memory: the only new model for which there is a closed truth."""
    data = examples_of("binary", 200, 3)
    spec = spec_of("binary", 3, {"kind": "mlp", "hidden": [8]})
    base = train(spec, data.chunks(50), policy=EVERYTHING, training=TRAINING)
    adapted = adapt(base.state, base.memory, [ChangeModel(LINEAR)], policy=EVERYTHING)
    soft = base.state.predictor.family.mean(base.state.predictor.outputs(base.state.w, data.x)).double()
    truth = train(spec_of("binary", 3), [Examples(data.key, data.x, soft)]).state.w
    torch.testing.assert_close(adapted.state.w, truth, rtol=1e-3, atol=1e-4)


def test_networks_are_measured_not_bounded() -> None:
    base = digit_base("mlp", 0.1)
    data, holdout = digits()
    retained = rows(data, 0, 800)
    for ask in (certify, partial(refine, tolerance=0.01)):
        with pytest.raises(ValueError, match="No bound exists for a network"):
            ask(base.state, base.memory, retained.chunks(200))
    gone = rows(data, 0, 20)
    draw = draw_from(without(retained, gone))
    found = adapt(base.state, base.memory, [RemoveData([gone])], draw=draw, holdout=[holdout])
    certificate = found.certificate
    assert certificate is not None
    assert (certificate.kind, certificate.passes) == ("measured", 0)
    assert certificate.bound is certificate.relative is certificate.prediction_bound is None
    audit, state = certificate.audit, found.state
    assert audit is not None
    for figure, measured in ((audit.removed_loss, gone), (audit.unseen_loss, holdout)):
        f = state.predictor.outputs(state.w, measured.x).double()
        truth = float(state.predictor.family.loss(measured.y.double(), f).mean())
        assert figure == pytest.approx(truth, rel=1e-6)
    assert found.cost.data_passes == 0


def test_a_network_needs_rows_of_the_retained_data() -> None:
    base = digit_base("mlp", 0.1)
    with pytest.raises(ValueError, match="pass `draw`"):
        adapt(base.state, base.memory, [ChangeRegularizer(l2(2.0))])
