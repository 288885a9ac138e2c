"""Converts examples in any supported form to request bodies of limited size.

Frames, tables and arrays are sent as Arrow. Examples from an iterable are sent as JSON lines, because their Arrow types
would have to be guessed. pandas, NumPy and pyarrow are imported only when needed.
"""

import importlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from amend.errors import FrameInvalid, PackageMissing
from amend.json_encoding import to_json
from amend.sparse_matrices import as_rows, densify


class ArrowStream(Protocol):
    """A table that implements the Arrow PyCapsule interface: of pyarrow, pandas, polars, ..."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class ArrowArray(Protocol):
    """A single record batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...


Examples: TypeAlias = ArrowStream | ArrowArray | Mapping[str, Any] | Iterable[Mapping[str, Any]]
"""A table, a mapping of columns, or an iterable of examples."""

# Far below the service's default limits (100 000 examples, 64 MiB), and large enough for full speed.
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
    """The request bodies, created lazily."""
    if isinstance(examples, Mapping):
        one = isinstance(examples.get("id"), str)
        return batch_lines([examples]) if one else batch_tables(from_columns(examples))
    tables = record_batches(examples)
    return batch_lines(examples) if tables is None else batch_tables(tables)  # type: ignore[arg-type]


def record_batches(table: Any) -> Iterable[Any] | None:
    """The Arrow record batches of a table; None if the argument is not a table."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        return from_pandas(table)
    if hasattr(table, "__arrow_c_stream__"):
        pa = require("pyarrow")
        try:
            reader = pa.RecordBatchReader.from_stream(table)
        except pa.ArrowInvalid as error:
            raise FrameInvalid(f"A {type(table).__name__} is a single column. Pass a frame or a table.") from error
        return map(resolve_views, reader)
    if hasattr(table, "__arrow_c_array__"):
        pa = require("pyarrow")
        return [resolve_views(pa.record_batch(table))]
    return None


def resolve_views(batch: Any) -> Any:
    """Replace the string views of polars with strings: pyarrow supports few operations on views, the service none."""
    import pyarrow as pa

    def resolve(column: Any) -> Any:
        if pa.types.is_string_view(column.type):
            return column.cast(pa.large_string())
        if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
            return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.large_string()))
        return column

    return pa.RecordBatch.from_arrays([resolve(column) for column in batch.columns], batch.schema.names)


def batch_lines(examples: Iterable[Any]) -> Iterator[Batch]:
    """Collect examples into bodies of JSON lines."""
    for lines in group_lines(map(to_json, examples)):
        yield Batch(b"\n".join(lines), NDJSON, len(lines))


def group_lines(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group lines into lists that fit into one request; blank lines are dropped."""
    collected: list[bytes] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        if collected and (len(collected) == BATCH_ROWS or size + len(line) > BATCH_BYTES):
            yield collected
            collected, size = [], 0
        collected.append(line)
        size += len(line) + 1
    if collected:
        yield collected


def batch_tables(pieces: Iterable[Any]) -> Iterator[Batch]:
    """Regroup record batches of any size into Arrow streams of limited size."""
    collected: list[Any] = []
    rows = size = 0
    for whole in pieces:
        step = count_fitting_rows(whole.nbytes, whole.num_rows)
        for start in range(0, whole.num_rows, step):
            piece = whole.slice(start, step)
            full = rows + piece.num_rows > BATCH_ROWS or size + piece.nbytes > BATCH_BYTES
            if collected and (full or piece.schema != collected[0].schema):
                yield write_stream(collected)
                collected, rows, size = [], 0, 0
            collected.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if collected:
        yield write_stream(collected)


def write_stream(pieces: list[Any]) -> Batch:
    pa = require("pyarrow")
    out = io.BytesIO()
    with pa.ipc.new_stream(out, pieces[0].schema) as writer:
        for piece in pieces:
            writer.write_batch(piece)
    return Batch(out.getvalue(), ARROW, sum(piece.num_rows for piece in pieces))


def from_pandas(frame: Any) -> Iterator[Any]:
    pa = require("pyarrow")
    for start in range(0, len(frame), BATCH_ROWS):
        yield convert_frame(pa.RecordBatch, frame.iloc[start : start + BATCH_ROWS])


def convert_frame(kind: Any, frame: Any) -> Any:
    """A pandas frame as an Arrow table or record batch. Raises FrameInvalid, which names the column, if it cannot."""
    pa = require("pyarrow")
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise FrameInvalid(f"Two columns of the frame are named {str(name)!r}. Rename or drop one of them.")
    # Any index other than `id` is dropped: as a column it would be taken for a feature.
    index = "id" in frame.index.names
    dense = densify(frame)
    try:
        return kind.from_pandas(dense, preserve_index=index)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise describe_column_error({str(name): dense[name] for name in dense.columns}, error) from error


def describe_column_error(columns: Mapping[str, Any], error: Exception) -> FrameInvalid:
    """The error of the first column that cannot be converted to Arrow."""
    pa = require("pyarrow")
    for name, values in columns.items():
        try:
            to_vectors(values) if name == "x" else pa.array(values)
        except (pa.ArrowException, AttributeError, TypeError, ValueError):
            # a missing text is NaN in pandas
            present = [value for value in values if value is not None and value == value]
            kinds = sorted({type(value).__name__ for value in present}) or ["objects"]
            mixed = f"has values of different types ({', '.join(kinds[:3])})" if len(kinds) > 1 else "cannot be read"
            advice = "Convert it to one type, for example with .astype(str)."
            return FrameInvalid(f"The column {name!r} {mixed}. {advice}")
    return FrameInvalid(f"The frame cannot be converted to Arrow: {error}")


def from_columns(columns: Mapping[str, Any]) -> Iterator[Any]:
    """Record batches of columns given as lists or arrays. ``x`` may be sparse or have more than two dimensions."""
    pa = require("pyarrow")
    columns = {name: as_rows(values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns have different lengths: {lengths}.")
    rows = max(lengths.values(), default=0)
    step = count_fitting_rows(sum(getattr(values, "nbytes", 0) for values in columns.values()), rows)
    for start in range(0, rows, step):
        part = {name: values[start : start + step] for name, values in columns.items()}
        try:
            yield pa.RecordBatch.from_pydict({name: to_vectors(v) if name == "x" else v for name, v in part.items()})
        except (pa.ArrowException, AttributeError) as error:
            raise describe_column_error(part, error) from error


def to_vectors(values: Any) -> Any:
    """Inputs as an Arrow column of fixed-size lists."""
    np = require("numpy")
    pa = require("pyarrow")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        numbers = np.asarray(values)
    except ValueError as error:
        raise FrameInvalid("The rows of 'x' have different lengths.") from error
    if numbers.dtype.kind not in "biuf":
        raise FrameInvalid("The column 'x' must contain numbers, in rows of the same length.")
    flat = numbers.reshape(len(numbers), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def split_rows(inputs: Any) -> Iterator[Any]:
    """Split inputs into parts that fit into one request."""
    rows = as_rows(inputs)
    count = len(rows)
    step = count_fitting_rows(getattr(rows, "nbytes", 0), count)
    if rows is inputs and count <= step:
        return iter([inputs])
    return (rows[start : start + step] for start in range(0, count, step))


def count_fitting_rows(size: int, rows: int) -> int:
    """How many rows fit into one request, given the total size in bytes and the number of rows.

    >>> count_fitting_rows(size=20 * 2**20, rows=20), count_fitting_rows(size=0, rows=0)
    (8, 10000)
    """
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // size if size else BATCH_ROWS))


def require(package: str) -> Any:
    """Import an optional package. Raises PackageMissing with instructions if it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        message = f"Frames, tables and columns require {package}. Run `pip install {package}` or pass a list."
        raise PackageMissing(message) from error
