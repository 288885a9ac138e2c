"""Networks on scikit-learn's digits: what the tests of networks that are adapted by drawn rows share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits

from core.kprior import (
    Examples,
    MemoryPolicy,
    Result,
    State,
    Task,
    Training,
    adapt,
    train,
)
from core.kprior.certificate.audit import Audit
from core.kprior.data.random_samples import draw_from
from tests.core.kprior.problems import l2, rows

MLP: dict[str, Any] = {"kind": "mlp", "hidden": [50]}
TRAINING = Training(max_epochs=40, batch_size=64, learning_rate=0.005)
SEEDS = (0, 1)
FEW = MemoryPolicy(fraction=0.02)


@cache
def digits() -> tuple[Examples, Examples, Examples]:
    """1 000 rows to learn from, 300 of a holdout, and the rest to judge by."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    labels = torch.nn.functional.one_hot(torch.from_numpy(y), 10).float()
    data = Examples(torch.arange(len(x)), torch.from_numpy(x).float()[order] / 16, labels[order])
    return rows(data, 0, 1000), rows(data, 1000, 1300), rows(data, 1300, len(x))


def digit_spec(architecture: dict[str, Any] = MLP, delta: float = 0.1) -> dict[str, Any]:
    return {
        "input": {"kind": "vector", "dim": 64},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": l2(delta),
    }


def predict(state: State, data: Examples) -> torch.Tensor:
    return state.predictor.family.decide(state.predictor.outputs(state.w, data.x))


def accuracy(state: State, data: Examples) -> float:
    return float((predict(state, data) == data.y.argmax(1)).double().mean())


def of_class(data: Examples, number: int, there: bool = True) -> Examples:
    return data.take((data.y.argmax(1) == number) == there)


def train_digits(data: Examples, seed: int = 0, delta: float = 0.1) -> Result:
    return train(digit_spec(delta=delta), data.chunks(200), training=replace(TRAINING, seed=seed), policy=FEW)


@cache
def base(seed: int) -> Result:
    return train_digits(digits()[0], seed)


def adapt_digits(
    before: Result, tasks: list[Task], kept: Examples, seed: int = 0, **options: Any
) -> tuple[State, Audit]:
    """The adapted network and its audit."""
    training = Training(seed=seed, **options)
    holdout = [digits()[1]]
    found = adapt(before.state, before.memory, tasks, draw=draw_from(kept), holdout=holdout, training=training)
    assert found.certificate is not None
    assert (found.certificate.kind, found.certificate.bound, found.cost.data_passes) == ("measured", None, 0)
    assert found.certificate.audit is not None
    return found.state, found.certificate.audit
