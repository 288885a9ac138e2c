"""Parses the weights of examples: how many times an example counts, 1 by default."""

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
"""A larger weight would leave too few digits for the other examples."""
ERROR_MESSAGE = f"must be a number above 0 and up to {MAX_WEIGHT:.0f}"


def from_json(given: Sequence[float | None], field: str) -> NDArray[np.float64] | None:
    """Decoded weights -> (n,), NaN where a weight is missing; None if all are."""
    if given.count(None) == len(given):
        return None
    numbers = np.array([math.nan if weight is None else weight for weight in given], np.float64)
    return check(numbers, np.array([weight is None for weight in given]), field)


def from_column(column: pa.ChunkedArray, field: str) -> NDArray[np.float64] | None:
    """A column of weights (text if from CSV) -> (n,), NaN where a weight is missing; None if all are."""
    array = columns.to_array(column, field, "weight")
    if array.null_count == len(array):
        return None
    if columns.is_text(array.type):
        array = parse(array, field)
    if not columns.is_number(array.type) or pa.types.is_boolean(array.type):
        raise Invalid.at((field, 0, "weight"), ERROR_CODE, f"{ERROR_MESSAGE}, got {array.type}")
    absent = array.is_null().to_numpy(zero_copy_only=False)
    numbers = np.array(
        array.cast(pa.float64(), safe=False).fill_null(math.nan).to_numpy(zero_copy_only=False), np.float64
    )
    return check(numbers, absent, field)


def parse(array: pa.Array, field: str) -> pa.Array:
    """Parse numbers in text."""
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
