"""Rows that a request of an analysis brings along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.analyses.fitted_features import has_fitted_features
from core.analyses.requests import decode_rows, encode_array
from tests.amend.estimators.rows import imported, spec_of
from tests.amend.estimators.test_pipelines import fit


def test_added_targets_are_what_the_model_fits() -> None:
    spec: Any = {
        "input": {"kind": "vector", "dim": 1},
        "target": {"kind": "number", "transform": "log"},
        "architecture": {"kind": "linear"},
        "regularizer": {"kind": "l2", "delta": 1.0},
    }
    y = np.array([1.0, 20.0])
    given = {"x": encode_array(np.ones((2, 1), np.float32)), "y": encode_array(y), "weight": None, "holdout": [0, 1]}
    rows, holdout = decode_rows(given, spec, first=7)
    assert rows.y[:, 0].tolist() == pytest.approx([0.0, np.log(20)])
    assert (rows.key.tolist(), holdout.tolist()) == ([7, 8], [False, True])


@pytest.mark.parametrize(
    ("estimator", "fitted"), [("target encoder", True), ("ordinal", False), ("splines", False), ("drop first", False)]
)
def test_pipelines_whose_steps_saw_the_targets_are_known(estimator: str, fitted: bool) -> None:
    """Their leave-one-out would be far too good."""
    spec: Any = spec_of(imported(*fit(estimator)))
    assert has_fitted_features(spec) is fitted
    if fitted:
        spec["input"]["transform"]["trained_on"] = "other"
        assert not has_fitted_features(spec)
