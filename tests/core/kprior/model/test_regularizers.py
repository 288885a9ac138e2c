"""Regularizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from tests.core.kprior.problems import l2, spec_of

P = 6


def test_bias_is_free_unless_it_is_asked_for() -> None:
    for spec in (spec_of("classes", 2), spec_of("classes", 2, {"kind": "mlp", "hidden": [3]})):
        predictor = Predictor(spec)
        free = regularizer_of({"kind": "l2", "delta": 2.0}, predictor).delta
        assert torch.equal(free == 0, predictor.bias())
        assert bool((free[~predictor.bias()] == 2).all())
        assert bool((regularizer_of(l2(2.0, True), predictor).delta == 2).all())


def test_deltas_can_differ() -> None:
    predictor = Predictor(spec_of("number", 3))
    assert regularizer_of(l2([1.0, 2.0, 0.0, 4.0], True), predictor).delta.tolist() == [1, 2, 0, 4]
    # a delta for each parameter is meant for each: only one delta for all leaves the biases out
    assert regularizer_of(l2([1.0, 2.0, 0.0, 4.0], False), predictor).delta.tolist() == [1, 2, 0, 4]


def test_penalties_of_columns_are_refused_for_networks_and_images() -> None:
    spec = spec_of("number", 3, {"kind": "mlp", "hidden": [2]})
    image = {**spec_of("number", 3), "input": {"kind": "image", "shape": [1, 1, 3]}}
    for model in (spec, image):
        with pytest.raises(ValueError, match="linear models of vectors and tables"):
            regularizer_of({"kind": "l2", "columns": {"0": 1.0}}, Predictor(model))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"kind": "l1", "delta": 1.0}, "l1"),
        ({"delta": -1.0}, "negative"),
        ({"delta": float("nan")}, "finite"),
        ({"delta": float("inf")}, "finite"),
        ({"delta": [1.0, 2.0]}, "4 numbers"),
        ({"delta": [[1.0] * 4]}, "4 numbers"),
        ({"delta": "much"}, "delta"),
        ({"delta": None}, "delta"),
        ({"toward": [1.0]}, "4 finite numbers"),
        ({"toward": [1.0, 2.0, 3.0, float("nan")]}, "4 finite numbers"),
        ({"columns": {"3": 1.0}}, "no column '3'"),
        ({"columns": {"0": -1.0}}, "negative"),
        ({"delta": [1.0] * 4, "columns": {"0": 1.0}}, "list"),
    ],
    ids=str,
)
def test_bad_regularizers_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        regularizer_of(spec, Predictor(spec_of("number", 3)))
