"""Weights of examples as callers send them -> numbers: how many times an example counts, one where nothing is said."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.errors import Invalid
from service.parsing import columns

ERROR_CODE = "weight_invalid"
MAX_WEIGHT = 1e6
"""An example that counts more leaves too few digits for the others."""
ERROR_MESSAGE = f"must be a number above 0 and up to {MAX_WEIGHT:.0f}"


def from_json(given: Sequence[float | None], field: str) -> NDArray[np.float64] | None:
    """Decoded weights -> (n,), NaN where none is given; None: none is."""
    if given.count(None) == len(given):
        return None
    made = np.array([math.nan if weight is None else weight for weight in given], np.float64)
    return check(made, np.array([weight is None for weight in given]), field)


def from_column(column: pa.ChunkedArray, field: str) -> NDArray[np.float64] | None:
    """A column of weights, as text where it comes from CSV -> (n,), NaN where none is given; None: none is."""
    array = columns.to_array(column, field, "weight")
    if array.null_count == len(array):
        return None
    if columns.is_text(array.type):
        array = parse(array, field)
    if not columns.is_number(array.type) or pa.types.is_boolean(array.type):
        raise Invalid.at((field, 0, "weight"), ERROR_CODE, f"{ERROR_MESSAGE}, got {array.type}")
    absent = array.is_null().to_numpy(zero_copy_only=False)
    made = np.array(array.cast(pa.float64(), safe=False).fill_null(math.nan).to_numpy(zero_copy_only=False), np.float64)
    return check(made, absent, field)


def parse(array: pa.Array, field: str) -> pa.Array:
    """Numbers that are written as text."""
    try:
        return pc.cast(array, pa.float64())
    except pa.ArrowInvalid:
        for i, text in enumerate(array.to_pylist()):
            try:
                pa.scalar(text, pa.string()).cast(pa.float64())
            except pa.ArrowInvalid:
                raise Invalid.at((field, i, "weight"), ERROR_CODE, ERROR_MESSAGE) from None
        raise


def check(weights: NDArray[np.float64], absent: NDArray[np.bool_], field: str) -> NDArray[np.float64]:
    bad = ~absent & ~((weights > 0) & (weights <= MAX_WEIGHT))
    if bad.any():
        raise Invalid.at((field, int(bad.argmax()), "weight"), ERROR_CODE, ERROR_MESSAGE)
    return weights
