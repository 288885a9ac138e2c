"""Numeric targets whose logarithm is fitted: conversion of targets, and of predictions back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .spec import Target

FUNCTIONS: dict[str, tuple[Any, Any]] = {"log": (np.log, np.exp), "log1p": (np.log1p, np.expm1)}


def is_transformed(target: Target) -> bool:
    """Whether the model fits a function of its targets."""
    return target["kind"] == "number" and "transform" in target


def to_fitted(target: Target, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers that the model fits.

    >>> to_fitted({"kind": "number", "transform": "log1p"}, np.array([0.0])).tolist()
    [0.0]
    """
    if target["kind"] != "number" or "transform" not in target:
        return y
    made: NDArray[np.float64] = FUNCTIONS[target["transform"]][0](y)
    return made


def from_fitted(target: Target, mean: NDArray[Any]) -> NDArray[Any]:
    """Predictions in the units of the targets: the median, if the logarithm is normally distributed."""
    if target["kind"] != "number" or "transform" not in target:
        return mean
    with np.errstate(over="ignore"):
        made: NDArray[Any] = FUNCTIONS[target["transform"]][1](mean)
    return made


def smallest(target: Target) -> float | None:
    """The number that all targets must exceed; None if there is none."""
    if target["kind"] != "number" or "transform" not in target:
        return None
    return 0.0 if target["transform"] == "log" else -1.0
