"""The comparison of networks: what it measures besides the methods, and how long the methods are trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.paper import networks
from bench.paper.networks import compare_network
from bench.problems import Problem, mnist_spec
from core.kprior import AddData, Examples, train


def test_methods_with_a_memory_take_as_many_gradients_as_the_retrain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "FEWER_FRACTIONS", (0.5,))
    monkeypatch.setattr(networks, "warm_visits", lambda count: 64)
    random = torch.Generator().manual_seed(0)
    x = torch.rand(240, 784, generator=random)
    y = torch.nn.functional.one_hot((10 * x[:, 0]).long(), 10).float()
    data = Examples(torch.arange(240), x, y)
    base, added, test = (data.take(torch.arange(*rows)) for rows in ((0, 100), (100, 200), (200, 240)))
    spec = mnist_spec({"kind": "mlp", "hidden": [4]}, 1.0)
    retained = data.take(torch.arange(200))
    problem = Problem("mnist-mlp", "add", spec, base, [AddData([added])], spec, retained, test)
    found = {figure.method: figure for figure in compare_network(problem, 0, epochs=3)}
    assert found["batch"].backward_passes == (3 + 1) * 200  # one more for the anchor
    # 50 past rows in memory and 100 new ones: four epochs of 150 rows
    assert {found[name].backward_passes for name in ("paper", "replay")} == {(4 + 1) * 150}
    # mixed inputs, a batch of 256 in each of three epochs, stand for the past whatever the memory
    assert found["ours"].backward_passes == 3 * (150 + 256) + 200
    assert found["nothing"].backward_passes == 0
    old = train(spec, [base], training=replace(networks.PAPERS["mnist-mlp"], max_epochs=3)).state
    right = old.predictor.family.decide(old.predictor.outputs(old.w, test.x)) == test.y.argmax(1)
    assert found["nothing"].accuracy == 100 * float(right.double().mean())
