"""Values of callers -> JSON, those of other libraries included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from amend.sparse import is_sparse, to_vector


def to_json(value: Any) -> bytes:
    """JSON of plain values, of what can be told as lists (arrays, tensors, sparse rows), of pandas' dates."""
    made = msgspec.json.encode(value, enc_hook=to_plain)
    # JSON has no infinity, and null would be a missing value; what has no null in it has neither
    if b"null" in made and has_infinity(value):
        raise ValueError("an infinite number cannot be sent")
    return made


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


def to_plain(given: Any) -> Any:
    """What JSON has for something of another library; TypeError if it has nothing."""
    if hasattr(given, "tolist"):
        return given.tolist()
    if is_sparse(given):
        return to_vector(given).tolist()
    if hasattr(given, "isoformat"):
        return given.isoformat() if given == given else None  # pandas' NaT is not even equal to itself
    raise TypeError(f"a {type(given).__name__} cannot be sent: {given!r}")
