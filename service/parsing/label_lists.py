"""Converts targets of several labels between the lists that callers send and the numbers that the ledger stores."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.data.label_sets import to_matrix
from core.kprior.model.categories import texts_of
from service.parsing import columns

SEPARATOR, NONE = "|", "[]"
"""In text, as in CSV: between labels, and for no label, because an empty field is a label that is not known yet."""

Values = list[int | str]


def from_json(values: Values, ys: list[Any], field: str) -> NDArray[np.float64]:
    """Lists of labels -> (n,)."""
    bits = {value: 2.0**code for code, value in enumerate(values)}
    found = np.empty(len(ys))
    for i, y in enumerate(ys):
        if not isinstance(y, list):
            raise Invalid.at((field, i, "y"), "label_invalid", "must be a list of the target's values")
        try:
            found[i] = sum(bits[str(one).lower() if isinstance(one, bool) else one] for one in set(y))
        except (KeyError, TypeError):
            raise unknown_label(i, field) from None
    return found


def from_column(values: Values, column: pa.ChunkedArray, field: str) -> NDArray[np.float64]:
    """A column of lists, or of text with a separator -> (n,)."""
    array = columns.to_array(column, field, "y")
    if columns.is_text(array.type):
        labels = pc.split_pattern(array, SEPARATOR)
        array = pc.if_else(pc.equal(array, NONE), pa.scalar([], labels.type), labels)
    if not columns.is_list(array.type) or columns.is_list(array.type.value_type):
        raise Invalid.at((field, 0, "y"), "label_invalid", f"expected lists of the target's values, got {array.type}")
    rows = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
    codes = columns.find(pa.chunked_array([pc.list_flatten(array)]), texts_of(values), -1.0, field, "y")
    bad = ~(codes >= 0)
    if bad.any():
        raise unknown_label(int(rows[bad.argmax()]), field)
    pairs = np.unique(np.stack([rows, codes.astype(np.int64)], 1), axis=0)  # a label counts once
    return np.bincount(pairs[:, 0], 2.0 ** pairs[:, 1], minlength=len(array)).astype(np.float64)


def unknown_label(i: int, field: str) -> Exception:
    return Invalid.at((field, i, "y"), "label_invalid", "has a label that is not one of the target's values")


def to_json(values: Values, y: float) -> list[int | str]:
    """A stored set of labels, in the order of the target's values."""
    return [value for value, there in zip(values, to_matrix(np.array([y]), len(values))[0], strict=True) if there]


def to_column(values: Values, y: NDArray[np.float64]) -> pa.Array:
    """Stored sets of labels as a column of lists."""
    whole = all(isinstance(value, int) for value in values)
    names = pa.array(values if whole else list(map(str, values)))
    rows, codes = np.nonzero(to_matrix(y, len(values)))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(y)))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names.take(pa.array(codes)))
