"""Examples in whatever form a caller has them -> bodies of requests, none of them too large.

Frames, tables and arrays go out as Arrow. Examples one by one go out as JSON lines: that is the form they have, while
their Arrow types would have to be guessed. pandas, NumPy and pyarrow are imported only when needed.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from amend.errors import PackageMissing
from amend.json_values import to_json
from amend.sparse import as_rows, densify


class ArrowStream(Protocol):
    """A table that speaks Arrow: of pyarrow, pandas, polars, ..."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """A single record batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


Examples: TypeAlias = ArrowStream | ArrowArray | Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""A table, a mapping of columns, or examples one by one."""

# Far below what the service takes by default (100 000 examples, 64 MiB), and enough for its full speed.
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 2**20

ARROW, NDJSON = "application/vnd.apache.arrow.stream", "application/x-ndjson"


@dataclass(frozen=True)
class Batch:
    """The body of one request."""

    content: bytes
    content_type: str
    count: int


def split(examples: Examples) -> Iterator[Batch]:
    """The bodies of some examples, made as they are asked for."""
    if isinstance(examples, Mapping):
        one = isinstance(examples.get("id"), str)
        return batch_lines([examples]) if one else batch_tables(from_columns(examples))
    pieces = record_batches(examples)
    return batch_lines(examples) if pieces is None else batch_tables(pieces)  # type: ignore[arg-type]


def record_batches(table: Any) -> Iterable[Any] | None:
    """A table in pieces, as Arrow has them; None if it is none."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        return from_pandas(table)
    if hasattr(table, "__arrow_c_stream__"):
        pa = require("pyarrow")

        return map(resolve_views, pa.RecordBatchReader.from_stream(table))
    if hasattr(table, "__arrow_c_array__"):
        pa = require("pyarrow")

        return [resolve_views(pa.record_batch(table))]
    return None


def resolve_views(batch: Any) -> Any:
    """With texts as such where polars has views of them: pyarrow can do little with those, the service nothing."""
    import pyarrow as pa

    def resolve(column: Any) -> Any:
        if pa.types.is_string_view(column.type):
            return column.cast(pa.large_string())
        if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
            return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.large_string()))
        return column

    return pa.RecordBatch.from_arrays([resolve(column) for column in batch.columns], batch.schema.names)


def batch_lines(examples: Iterable[Any]) -> Iterator[Batch]:
    """Examples one by one, gathered to JSON lines."""
    waiting: list[bytes] = []
    size = 0
    for example in examples:
        line = to_json(example)
        if waiting and (len(waiting) == BATCH_ROWS or size + len(line) > BATCH_BYTES):
            yield Batch(b"\n".join(waiting), NDJSON, len(waiting))
            waiting, size = [], 0
        waiting.append(line)
        size += len(line) + 1
    if waiting:
        yield Batch(b"\n".join(waiting), NDJSON, len(waiting))


def batch_tables(pieces: Iterable[Any]) -> Iterator[Batch]:
    """Record batches of any size -> streams of a good size."""
    waiting: list[Any] = []
    rows = size = 0
    for whole in pieces:
        step = count_fitting_rows(whole.nbytes, whole.num_rows)
        for start in range(0, whole.num_rows, step):
            piece = whole.slice(start, step)
            full = rows + piece.num_rows > BATCH_ROWS or size + piece.nbytes > BATCH_BYTES
            if waiting and (full or piece.schema != waiting[0].schema):
                yield write_stream(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if waiting:
        yield write_stream(waiting)


def write_stream(pieces: list[Any]) -> Batch:
    pa = require("pyarrow")

    out = io.BytesIO()
    with pa.ipc.new_stream(out, pieces[0].schema) as writer:
        for piece in pieces:
            writer.write_batch(piece)
    return Batch(out.getvalue(), ARROW, sum(piece.num_rows for piece in pieces))


def from_pandas(frame: Any) -> Iterator[Any]:
    pa = require("pyarrow")

    # An index without a name is the frame's own business: as a column it would be taken for a feature.
    index = "id" in frame.index.names
    for start in range(0, len(frame), BATCH_ROWS):
        yield pa.RecordBatch.from_pandas(densify(frame.iloc[start : start + BATCH_ROWS]), preserve_index=index)


def from_columns(columns: Mapping[str, Any]) -> Iterator[Any]:
    """Columns as lists or arrays; ``x`` may have any number of dimensions after the first, or be sparse."""
    pa = require("pyarrow")

    columns = {name: as_rows(values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns are not of the same length: {lengths}")
    rows = max(lengths.values(), default=0)
    step = count_fitting_rows(sum(getattr(values, "nbytes", 0) for values in columns.values()), rows)
    for start in range(0, rows, step):
        some = {name: values[start : start + step] for name, values in columns.items()}
        yield pa.RecordBatch.from_pydict({name: to_vectors(v) if name == "x" else v for name, v in some.items()})


def to_vectors(values: Any) -> Any:
    """Inputs as a column of lists of numbers."""
    np = require("numpy")
    pa = require("pyarrow")

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    numbers = np.asarray(values)
    flat = numbers.reshape(len(numbers), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def split_rows(inputs: Any) -> Iterator[Any]:
    """Inputs, some thousands at once."""
    rows = as_rows(inputs)
    count = len(rows)
    step = count_fitting_rows(getattr(rows, "nbytes", 0), count)
    if rows is inputs and count <= step:
        return iter([inputs])
    return (rows[start : start + step] for start in range(0, count, step))


def count_fitting_rows(size: int, rows: int) -> int:
    """How many of some rows go out at once.

    >>> count_fitting_rows(size=20 * 2**20, rows=20), count_fitting_rows(size=0, rows=0)
    (8, 10000)
    """
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size if size else BATCH_ROWS))


def require(package: str) -> Any:
    """A package that not everybody has who has the client."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        message = f"frames, tables and columns take {package}, which is not installed: pip install {package}"
        raise PackageMissing(f"{message} (examples one by one do without)") from error
