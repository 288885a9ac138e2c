"""Vectors and images: numbers in a fixed order."""

import math
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import simdjson

from service.parsing import columns
from service.parsing.inputs.base import Inputs, Matrix, location_of, shape_error, shape_of, to_shortest
from service.parsing.inputs.image_files import decode_file, decode_text
from service.parsing.json_items import shift_errors

CHUNK_INPUTS, CHUNK_NUMBERS = 256, 2**18
"""Number of inputs, and of numbers in them, that are parsed from JSON at a time."""


class VectorInputs(Inputs):
    """Lists of numbers."""

    json_type = list[float | bool]
    reads_raw = True

    def __init__(self, dim: int) -> None:
        self.width = dim

    def from_raw(self, texts: list[Any], field: str, bare: bool = False) -> Matrix | None:
        matrix = np.empty((len(texts), self.width), self.dtype)
        start, between, end = (b"[[", b"],[", b"]]") if bare else (b"[", b",", b"]")
        # in chunks, which fit into the cache of the processor and let other threads run
        piece = max(1, min(CHUNK_INPUTS, CHUNK_NUMBERS // self.width))
        for i in range(0, len(texts), piece):
            chunk = texts[i : i + piece]
            text = start + between.join(chunk) + end
            if text.count(b",") >= len(chunk) * self.width:
                return None
            try:
                rows: Any = simdjson.Parser().parse(text)
                # if all lists are flat and have the right length, the buffer of all numbers is the matrix
                lists = np.count_nonzero(np.frombuffer(text, np.uint8) == ord("["))
                if lists != len(chunk) + 1 or any(len(row) != self.width for row in rows):
                    return None
                read = np.frombuffer(rows.as_buffer(of_type="d"), np.float64).reshape(len(chunk), self.width)
            except (TypeError, ValueError, RuntimeError):
                return None
            with shift_errors(field, i):
                matrix[i : i + piece] = self.to_stored(read, field)
        return matrix

    def from_json(self, xs: list[Any], field: str) -> Matrix:
        if set(map(len, xs)) != {self.width}:
            i = next(i for i, x in enumerate(xs) if len(x) != self.width)
            raise shape_error(location_of(field, i), f"expected {self.width} numbers, got {len(xs[i])}")
        flat = np.fromiter(chain.from_iterable(xs), np.float64, len(xs) * self.width)
        return self.to_stored(flat.reshape(len(xs), self.width), field)

    def feature_columns(self, names: list[str]) -> dict[str, pa.DataType]:
        return {name: pa.float64() for name in names if name not in columns.RESERVED}

    def to_json(self, x: Matrix, unseen: str | None = None) -> Any:
        return [to_shortest(v) for v in x]


class ImageInputs(VectorInputs):
    """Channels of rows of pixels, flat in tables; or PNG and JPEG files, in JSON in Base64."""

    json_type = list[list[list[float | bool]]] | str
    reads_raw = False
    takes_files = True

    def __init__(self, shape: list[int], dtype: str) -> None:
        super().__init__(math.prod(shape))
        self.shape, self.dtype = tuple(shape), dtype

    def from_json(self, xs: list[Any], field: str) -> Matrix:
        if any(isinstance(x, str) for x in xs):
            places = [location_of(field, i) for i in range(len(xs))]
            xs = [
                self.scale(decode_text(x, self.shape, place)) if isinstance(x, str) else x
                for x, place in zip(xs, places, strict=True)
            ]
        try:
            matrix = np.array(xs, np.float64)
        except ValueError:
            matrix = np.empty(0)
        if matrix.shape != (len(xs), *self.shape):
            i = next(i for i, x in enumerate(xs) if shape_of(x) != self.shape)
            raise shape_error(location_of(field, i), f"expected the shape {list(self.shape)}")
        return self.to_stored(matrix.reshape(len(xs), self.width), field)

    def from_columns(self, table: pa.Table, field: str) -> Matrix:
        if "x" not in table.column_names or not columns.is_binary(table.column("x").type):
            return super().from_columns(table, field)
        matrix = np.empty((table.num_rows, self.width), self.dtype)
        for i, content in enumerate(table.column("x").to_pylist()):
            pixels = decode_file(content or b"", self.shape, location_of(field, i))
            matrix[i] = self.scale(pixels).reshape(-1)
        return matrix

    def scale(self, pixels: Matrix) -> Matrix:
        """The pixels of a file in the units of the model: bytes, or numbers from 0 to 1."""
        return pixels if self.dtype == "uint8" else pixels / np.float32(255)

    def to_json(self, x: Matrix, unseen: str | None = None) -> Any:
        numbers = [int(v) if self.dtype == "uint8" else to_shortest(v) for v in x]
        return np.array(numbers, object).reshape(self.shape).tolist()
