"""The penalties that a tuning compares."""

import numpy as np

from core.kprior.model.spec import DEFAULT_LEAF_DELTA, Spec

DELTA_STEPS = np.linspace(-3, 3, 13)
"""Decimal logarithms of the default values of delta, relative to the present one."""


def default_deltas(spec: Spec) -> list[float]:
    """13 values of `regularizer.delta` around the present one.

    >>> default_deltas({"regularizer": {"kind": "l2", "delta": 5.0}})[::3]
    [0.005, 0.158, 5.0, 158.0, 5000.0]
    >>> default_deltas({"regularizer": {"kind": "l2", "delta": "auto"}})[6]
    300.0
    """
    delta = spec["regularizer"].get("delta", 1.0)
    if delta == "auto":
        delta = DEFAULT_LEAF_DELTA
    now = float(np.mean(delta)) if isinstance(delta, list) else float(delta)
    return [float(f"{max(now, 1e-3) * 10**step:.3g}") for step in DELTA_STEPS]
