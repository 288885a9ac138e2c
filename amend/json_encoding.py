"""Encodes callers' values, including those of NumPy, pandas, torch and scipy, as JSON."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from amend.sparse_matrices import is_sparse, to_vector


def to_json(value: Any) -> bytes:
    """Encode plain values, arrays, tensors, sparse rows and dates as JSON. Raises ValueError for infinite numbers."""
    encoded = msgspec.json.encode(value, enc_hook=to_plain)
    # msgspec encodes infinity as null, which would be read as a missing value; without a null there is no infinity.
    if b"null" in encoded and has_infinity(value):
        raise ValueError("JSON cannot represent infinite numbers. Remove or replace them.")
    return encoded


def has_infinity(value: Any) -> bool:
    """
    >>> has_infinity({"x": [1.0, float("-inf")]}), has_infinity([None, float("nan")])
    (True, False)
    """
    if isinstance(value, float):
        return math.isinf(value)
    if isinstance(value, Mapping):
        return any(map(has_infinity, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_infinity, value))
    return has_infinity(value.tolist()) if hasattr(value, "tolist") else False


def to_plain(value: Any) -> Any:
    """A plain value in place of an object of another library. Raises TypeError if there is none."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_sparse(value):
        return to_vector(value).tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat() if value == value else None  # pandas' NaT is not equal to itself
    raise TypeError(f"Cannot encode a {type(value).__name__} as JSON: {value!r}.")
