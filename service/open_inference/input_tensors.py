"""Reads the body of an Open Inference Protocol request into an array of inputs.

Tensor data are flat or nested JSON lists, or little-endian bytes after the JSON (the binary tensor data extension),
where each text is preceded by its length.
"""

import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from core.errors import Invalid
from core.kprior.model.spec import Input, shape_of
from service.examples.json_objects import decode_or_refuse
from service.open_inference.metadata import NUMPY
from service.parsing.inputs import Inputs
from service.parsing.inputs.tables import TableInputs

FIELD = "rows"
"""First part of the location of an error in the data. (`inputs` locates an error in the tensors.)"""
Parameters = dict[str, str | int | float | bool | None]


class TensorIn(msgspec.Struct):
    """An input tensor of a request."""

    name: str
    shape: list[int]
    datatype: (
        Literal["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
        | Literal["FP16", "FP32", "FP64", "BYTES"]
    )
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.Raw(b"null")


class OutputWanted(msgspec.Struct):
    """A requested output tensor."""

    name: str
    parameters: Parameters = {}


class InferenceBody(msgspec.Struct):
    """The JSON of a request. Unknown fields belong to extensions and are ignored."""

    inputs: list[TensorIn]
    id: str | None = None
    parameters: Parameters = {}
    outputs: list[OutputWanted] = []


def split_body(body: bytes, head_bytes: str | None) -> tuple[bytes, bytes]:
    """The JSON of a body and the bytes after it; a header has the length of the JSON."""
    size = len(body)
    if head_bytes is not None:
        size = int(head_bytes) if head_bytes.isdecimal() and len(head_bytes) < 20 else -1
        if not 0 <= size <= len(body):
            message = "Inference-Header-Content-Length must be the length of the JSON at the start of the body."
            raise Invalid("tensor_invalid", message)
    return body[:size], body[size:]


def decode_body(head: bytes) -> InferenceBody:
    body: InferenceBody = decode(InferenceBody, head, ())
    return body


def decode(kind: Any, text: bytes, place: tuple[str | int, ...]) -> Any:
    messages = {"datatype": f"must be one of {', '.join([*NUMPY, 'BYTES'])}"}
    return decode_or_refuse(
        lambda: msgspec.json.decode(text, type=kind), *place, code="tensor_invalid", messages=messages
    )


def refuse(i: int, field: str, message: str) -> Invalid:
    return Invalid.at(("inputs", i, field), "tensor_invalid", message)


def count_rows(tensors: Sequence[TensorIn], given: Input) -> int:
    """The number of rows. Raises Invalid if the tensors do not match the model, or differ in their number of rows."""
    if given["kind"] == "table":
        check_names(tensors, [column["name"] for column in given["columns"]])
        per_row: tuple[int, ...] = (1,)
    else:
        if len(tensors) != 1:
            raise Invalid.at(("inputs",), "tensor_invalid", f"expected one tensor, got {len(tensors)}")
        per_row = shape_of(given)
    wanted = ", ".join(map(str, per_row))
    for i, tensor in enumerate(tensors):
        rows, *others = tensor.shape or [-1]
        flat = [] if given["kind"] == "table" else [math.prod(per_row)]
        if rows < 0 or others not in (list(per_row), flat):
            raise refuse(i, "shape", f"expected [rows, {wanted}]")
        if rows != tensors[0].shape[0]:
            raise refuse(i, "shape", f"has {rows} rows, but the first tensor has {tensors[0].shape[0]}")
    return tensors[0].shape[0]


def check_names(tensors: Sequence[TensorIn], columns: Sequence[str]) -> None:
    """Raise Invalid unless there is one tensor per column."""
    left = set(columns)
    for i, tensor in enumerate(tensors):
        if tensor.name not in left:
            raise refuse(i, "name", "was given more than once" if tensor.name in columns else "unknown column")
        left.remove(tensor.name)
    if left:
        missing = next(name for name in columns if name in left)
        raise Invalid.at(("inputs",), "tensor_invalid", f"the tensor for column {missing!r} is missing")


def read_rows(tensors: Sequence[TensorIn], tail: bytes, given: Input, inputs: Inputs) -> NDArray[Any]:
    """The array of inputs."""
    data: dict[str, Sequence[Any] | NDArray[Any]] = {}
    start = 0  # an offset: slicing the rest for each of many columns would copy it each time
    for i, tensor in enumerate(tensors):
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            data[tensor.name] = values_of_json(tensor, i, missing=given["kind"] == "table")
            continue
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(tail) - start:
            raise refuse(i, "parameters", "binary_data_size does not match the data after the JSON")
        data[tensor.name] = values_of_bytes(tensor, tail[start : start + size], i)
        start += size
    if start < len(tail):
        raise Invalid("tensor_invalid", f"The body has {len(tail) - start} more bytes than its tensors.")
    if isinstance(inputs, TableInputs):
        columns = (to_values(data[name]) for name in inputs.names)
        return inputs.from_values(columns, tensors[0].shape[0], FIELD)
    if (tensors[0].datatype == "BYTES") != (given["kind"] == "text"):
        raise refuse(0, "datatype", "expected BYTES" if given["kind"] == "text" else "expected numbers")
    if given["kind"] == "text":
        return inputs.from_json(list(data[tensors[0].name]), FIELD)
    x = np.asarray(data[tensors[0].name], np.float64).reshape(-1, inputs.width)
    return inputs.to_stored(x, FIELD)


def to_values(values: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    """The values of a column with None for missing values, which binary data encode as NaN."""
    if not isinstance(values, np.ndarray):
        return values
    return [None if v != v else v for v in values.tolist()]


def values_of_json(tensor: TensorIn, i: int, missing: bool) -> list[Any]:
    """The elements of a tensor, row by row, from flat or nested JSON data."""
    text = bytes(tensor.data).lstrip()
    if text == b"null":
        raise refuse(i, "data", "is missing")
    element: Any = {"BYTES": str, "BOOL": bool}.get(tensor.datatype, float if "FP" in tensor.datatype else int)
    if missing:
        element = element | None
    shape = tensor.shape if text[:1] == b"[" and text[1:].lstrip()[:1] == b"[" else [math.prod(tensor.shape)]
    kind = element
    for _ in shape:
        kind = list[kind]  # type: ignore[valid-type]
    items: list[Any] = [decode(kind, text, ("inputs", i, "data"))]
    for size in shape:
        if any(len(item) != size for item in items):
            raise refuse(i, "data", f"does not have the shape {tensor.shape}")
        items = list(chain.from_iterable(items))
    if "INT" in tensor.datatype:
        limits = np.iinfo(NUMPY[tensor.datatype])
        if any(v is not None and not limits.min <= v <= limits.max for v in items):
            raise refuse(i, "data", f"a number is out of range for {tensor.datatype}")
    return items


def values_of_bytes(tensor: TensorIn, data: bytes, i: int) -> NDArray[Any] | list[str]:
    """The elements of a tensor from binary data."""
    count = math.prod(tensor.shape)
    if tensor.datatype != "BYTES":
        kind = np.dtype(NUMPY[tensor.datatype])
        if len(data) != count * kind.itemsize:
            raise refuse(i, "data", f"expected {count * kind.itemsize} bytes for this shape, got {len(data)}")
        return np.frombuffer(data, kind)
    texts: list[str] = []
    start = 0
    try:
        while start < len(data):
            if len(texts) == count:  # before the rest is decoded: sixty megabytes may be millions of empty texts
                raise refuse(i, "data", f"expected {count} texts for this shape, got more")
            (size,) = struct.unpack_from("<I", data, start)
            start += 4 + size
            texts.append(data[start - size : start].decode())
    except (struct.error, UnicodeDecodeError):
        raise refuse(i, "data", "expected UTF-8 texts, each preceded by its length as 4 bytes") from None
    if start != len(data) or len(texts) != count:
        raise refuse(i, "data", f"expected {count} texts for this shape, got {len(texts)}")
    return texts
