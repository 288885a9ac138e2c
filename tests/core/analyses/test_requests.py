"""Rows that a request of an analysis brings along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.analyses.requests import decode_rows, encode_array


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
