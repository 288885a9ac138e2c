"""Raw inputs of a model as the tensors that its ONNX encoder takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kprior.model.spec import Column, Input, dtype_of, shape_of
from ..kprior.model.text_storage import to_texts

NUMPY = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
}
UNSEEN = "(unseen)"
"""Text of a category value that the column does not list."""
Tensor = Mapping[str, Any]
"""An input of an ONNX model: `name`, `type` and `shape`."""


def takes_columns(inputs: Sequence[Tensor], columns: Sequence[Column]) -> bool:
    """Whether an encoder takes the columns of a table one by one."""
    return {one["name"] for one in inputs} <= {column["name"] for column in columns}


def to_tensors(inputs: Sequence[Tensor], given: Input, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Raw inputs (n, ...) as the tensors of an encoder."""
    if given["kind"] == "table" and takes_columns(inputs, given["columns"]):
        places = {column["name"]: j for j, column in enumerate(given["columns"])}
        made = {}
        for one in inputs:
            j = places[one["name"]]
            column = to_column(x[:, j], given["columns"][j], NUMPY[one["type"]])
            made[one["name"]] = column[:, None] if len(one["shape"]) > 1 else column
        return made
    [one] = inputs
    if given["kind"] == "text":
        texts = np.array(to_texts(x), object)
        return {one["name"]: texts[:, None] if len(one["shape"]) > 1 else texts}
    x = x.reshape(len(x), *shape_of(given))
    if dtype_of(given) == "uint8" and one["type"] != "tensor(uint8)":
        x = x.astype(np.float32) / np.float32(255)  # as models of images without an encoder
    return {one["name"]: x.astype(NUMPY[one["type"]])}


def to_column(codes: NDArray[Any], column: Column, dtype: str) -> NDArray[Any]:
    """(n,) the values of a column: texts of categories, "" for missing ones; numbers with NaN for missing ones."""
    if dtype != "object":
        return codes.astype(dtype)
    assert column["type"] == "category"
    values = [str(value) for value in column["values"]]
    texts = ["" if c != c else values[int(c)] if 0 <= c < len(values) else UNSEEN for c in codes.tolist()]
    return np.array(texts, object)
