"""Converts Arrow columns to NumPy arrays. Errors have the index of the first invalid row."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from core.errors import Invalid
from core.models.spec import RESERVED

__all__ = ["RESERVED", "check_type", "days", "find", "lists", "numbers", "numbers_in_text", "text", "texts"]


MAX_TEXT_BYTES = 800
"""Maximum size of one text: enough for 200 characters, and small enough that a dictionary cannot expand to much."""


BOOLEAN_TEXTS = {"false": "0", "true": "1"}
LABEL_TEXTS = ("false", "true", "no", "yes", "n", "y")
"""Texts of the two labels of a binary target, 0 and 1 in turn; upper and lower case do not matter."""
"""Numbers for true and false. As categories and classes they are the texts themselves."""


def check_type(kind: pa.DataType, field: str, name: str, listed: bool = False) -> None:
    """Reject unsupported column types before they are read: a dictionary of lists can expand to any size.

    With `listed`, lists of text are supported, too.
    """
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if inner is kind and pa.types.is_dictionary(kind):
        inner = kind.value_type
    single = (is_text(inner) or is_date(inner)) and (listed or not is_list(kind))
    if not (is_number(inner) or pa.types.is_null(inner) or single):
        raise Invalid.at(
            (field, 0, name), "example_invalid", f"expected numbers, text or dates, got {kind}; convert the column"
        )


def to_array(column: pa.ChunkedArray, field: str, name: str) -> pa.Array:
    """The column as one array, with dictionaries decoded."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # a column without chunks
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    if not pa.types.is_dictionary(array.type):
        return array
    values = array.dictionary
    if is_text(values.type) and len(values) and (pc.max(pc.binary_length(values)).as_py() or 0) > MAX_TEXT_BYTES:
        raise Invalid.at((field, 0, name), "example_invalid", f"a text is longer than {MAX_TEXT_BYTES} bytes")
    return array.dictionary_decode()


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def numbers(column: pa.ChunkedArray, field: str, name: str, missing: bool = False) -> NDArray[np.float64]:
    """A column of numbers. With `missing`, null becomes NaN; otherwise it is an error."""
    array = to_array(column, field, name)
    if not (is_number(array.type) or pa.types.is_null(array.type)):
        raise Invalid.at((field, 0, name), "example_invalid", f"expected numbers, got {array.type}")
    absent = array.is_null()
    if not missing:
        if array.null_count:
            row = int(pc.index(absent, True).as_py())
            raise Invalid.at((field, row, name), "example_invalid", "is missing")
        return np.asarray(array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    values = np.array(array.cast(pa.float64(), safe=False).fill_null(0).to_numpy(zero_copy_only=False), np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        message = "must be finite; send a missing value as null, or in CSV as an empty field"
        raise Invalid.at((field, int(bad.argmax()), name), "number_not_finite", message)
    values[absent.to_numpy(zero_copy_only=False)] = math.nan
    return values


def numbers_in_text(column: pa.ChunkedArray, field: str, name: str, missing: bool = False) -> pa.Array:
    """Parse numbers in CSV text, including true and false."""
    array = to_array(column, field, name)
    lower = pc.utf8_lower(array)
    for word, number in BOOLEAN_TEXTS.items():
        array = pc.if_else(pc.equal(lower, word), number, array)
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:
        good, bad = 0, len(array)  # bisection: the first `good` values are valid, the first `bad` are not
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            array.slice(0, middle).cast(pa.float64())
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    hint = "; leave the field empty if the value is missing" if missing else ""
    raise Invalid.at((field, good, name), "example_invalid", f"expected a number{hint}")


def text(column: pa.ChunkedArray, field: str, name: str) -> pa.StringArray:
    """A column of text. Whole numbers are accepted too."""
    return as_text(to_array(column, field, name), field, name)


def texts(column: pa.ChunkedArray, field: str, name: str) -> list[str | None]:
    """A column of text as a list, with None for null."""
    return text(column, field, name).to_pylist()  # type: ignore[no-any-return]


def as_text(array: pa.Array, field: str, name: str) -> pa.Array:
    if pa.types.is_floating(array.type):
        try:  # many programs store whole numbers as floats if some are missing
            array = array.cast(pa.int64())
        except pa.ArrowInvalid as error:
            row = int(pc.index(pc.equal(pc.floor(array), array), False).as_py())
            raise Invalid.at(
                (field, max(row, 0), name), "example_invalid", "expected text or a whole number"
            ) from error
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if not is_text(kind):
        raise Invalid.at((field, 0, name), "example_invalid", f"expected text, got {kind}")
    return array.cast(pa.string())


def find(
    column: pa.ChunkedArray, codes: Mapping[str, float], unknown: float, field: str, name: str
) -> NDArray[np.float64]:
    """The code of each text: `unknown` if it has none, NaN for null."""
    array = as_text(to_array(column, field, name), field, name)
    indices = pc.index_in(array, value_set=pa.array(list(codes), pa.string())).fill_null(len(codes))
    found: NDArray[np.float64] = np.array([*codes.values(), unknown])[indices.to_numpy(zero_copy_only=False)]
    found[array.is_null().to_numpy(zero_copy_only=False)] = math.nan
    return found


PER_DAY = {"date32[day]": 1, "date64[ms]": 86_400_000, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def days(column: pa.ChunkedArray, field: str, name: str) -> NDArray[np.float64]:
    """Dates and timestamps as days since 1970, with NaN for null."""
    array = to_array(column, field, name)
    kind = array.type
    unit = kind.unit if pa.types.is_timestamp(kind) else str(kind)
    steps = np.asarray(array.cast(pa.int32() if unit == "date32[day]" else pa.int64()).fill_null(0))
    if unit == "ns":  # microseconds, as for dates in text
        steps, unit = steps // 1000, "us"
    values: NDArray[np.float64] = steps / PER_DAY[unit]
    values[array.is_null().to_numpy(zero_copy_only=False)] = math.nan
    return values


def lists(column: pa.ChunkedArray, width: int, field: str) -> NDArray[Any]:
    """A column of lists of `width` numbers, nested or flat -> (n, width), without a copy if possible."""
    array, rows, per_row = to_array(column, field, "x"), len(column), 1
    while is_list(array.type):
        if array.null_count:
            raise Invalid.at(
                (field, int(pc.index(array.is_null(), True).as_py()) // per_row, "x"), "example_invalid", "is missing"
            )
        if pa.types.is_fixed_size_list(array.type):
            per_row *= array.type.list_size
        else:
            sizes = pc.list_value_length(array).to_numpy(zero_copy_only=False)
            flat = not is_list(array.type.value_type)
            size = width // per_row if flat else int(sizes[0]) if len(sizes) else 0
            if (sizes != size).any():
                raise mismatch(int((sizes != size).argmax()) // per_row, field, width)
            per_row *= size
        if per_row == 0:
            raise mismatch(0, field, width)
        array = array.flatten()
    if not is_number(array.type):
        raise Invalid.at((field, 0, "x"), "example_invalid", f"expected numbers, got {array.type}")
    if rows and per_row != width:
        raise mismatch(0, field, width, per_row)
    if array.null_count:
        row = int(pc.index(array.is_null(), True).as_py()) // width
        raise Invalid.at((field, row, "x"), "example_invalid", "a number is missing")
    if pa.types.is_float16(array.type) or pa.types.is_boolean(array.type):
        array = array.cast(pa.float32())  # otherwise limits of 32 bits would be compared in 16
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.reshape(rows, width)


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def mismatch(row: int, field: str, width: int, given: int | None = None) -> Exception:
    got = "" if given is None else f", got {given}"
    return Invalid.at((field, row, "x"), "example_shape_mismatch", f"expected {width} numbers{got}")
