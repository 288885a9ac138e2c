"""Examples as tables: CSV, Arrow, Parquet. Column names and sizes are checked before any data are decompressed."""

import csv
import re
import struct
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from core.errors import Invalid, Malformed
from core.ledger.batch import Batch
from service.examples import arrow_sizes, parquet_sizes
from service.examples.readers import FIELD, SPLITS, ExampleReader, OptionalColumns, RowReader
from service.parsing import columns, times, weights
from service.parsing.targets import Targets

MAX_FRAGMENTS = 100_000
"""Columns times record batches above which batches are merged: small fragments cost more than their numbers."""
FEATHER = (b"ARROW1", b"FEA1")
"""Magic bytes of Arrow's file format and of its predecessor."""
MAX_HEADER_BYTES = 2**24
"""Enough for the names of 10 000 columns."""


def read_csv(reader: ExampleReader, body: bytes) -> Batch:
    names = check_csv(reader, body)
    types = {**dict.fromkeys(columns.RESERVED - {"x"}, pa.string()), **reader.inputs.feature_columns(names)}
    try:
        return from_table(reader, parse_csv(body, types))
    except pa.ArrowInvalid as error:
        bad = re.search(r"column #(\d+): Row #(\d+): CSV conversion error", str(error))
        if bad is None:
            raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
        if "UTF8" in str(error):
            column = names[int(bad[1])] if int(bad[1]) < len(names) else int(bad[1])
            # the header is row 1, the first example row 2
            raise Invalid.at((FIELD, int(bad[2]) - 2, column), "example_invalid", "must be UTF-8 text") from None
    # a value is not a number: true or false, or an error that must be located
    table = parse_csv(body, dict.fromkeys(types, pa.string()))
    missing = reader.spec["input"]["kind"] == "table"
    parsed = {
        name: columns.numbers_in_text(table.column(name), FIELD, name, missing)
        if kind == pa.float64()
        else table.column(name)
        for name, kind in types.items()
        if name in names
    }
    return from_table(reader, pa.table({name: parsed[name] for name in names}))


def check_csv(reader: RowReader, body: bytes) -> list[str]:
    """The names of the columns of a CSV body, which are checked, as is the number of lines."""
    try:
        header = re.split(rb"[\r\n]", body[:MAX_HEADER_BYTES], maxsplit=1)[0].decode("utf-8-sig")
        names = next(csv.reader([header.strip()]), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
    if "id" not in names:
        hint = "; the separator must be a comma" if ";" in header or "\t" in header else ""
        raise Invalid.at((reader.field,), "example_invalid", f"the column 'id' is missing{hint}")
    check_names(reader, names)
    lines = max(body.count(b"\n"), body.count(b"\r"))
    max_lines = (
        2 * reader.max_rows if b"\n\n" in body or b"\n\r" in body else reader.max_rows
    )  # every other line may be empty
    if lines > max_lines + 1:
        reader.check_size(lines, exactly=False)
    return names


def parse_csv(body: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return pa.csv.read_csv(pa.BufferReader(body), pa.csv.ReadOptions(use_threads=False), convert_options=convert)


def open_arrow(reader: RowReader, body: bytes) -> pa.Table:
    """The table of an Arrow stream, checked for the limits and columns of the reader."""
    if body.startswith(FEATHER):
        raise Malformed("body_malformed", "The body is an Arrow file (Feather). Send the Arrow stream format.")
    try:
        sizes = arrow_sizes.sizes_of(body)
        check_width(reader, sizes.columns)
        reader.check_size(sizes.rows)
        reader.check_unpacked(sizes.unpacked)
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            check_schema(reader, stream.schema)
            return gather(reader, stream, stream.schema)
    except (pa.ArrowException, OSError, ValueError, EOFError, struct.error) as error:
        raise Malformed("body_malformed", f"The body is not a complete Arrow stream: {error}") from None


def open_parquet(reader: RowReader, body: bytes) -> pa.Table:
    """The table of a Parquet file, checked for the limits and columns of the reader."""
    try:
        sizes = parquet_sizes.sizes_of(body)
        metadata = pa.parquet.read_metadata(pa.BufferReader(body))
        schema = metadata.schema.to_arrow_schema()
        reader.check_size(metadata.num_rows)
        check_schema(reader, schema)
        # the values of the non-feature columns must not count against the limit of stored numbers
        reader.check_unpacked(max(sizes.unpacked, 4 * (sizes.values - 8 * reader.max_rows)))
        # texts stay dictionary-encoded until their length is checked: a page can repeat one a million times
        texts = [field.name for field in schema if columns.is_text(field.type)]
        file = pa.parquet.ParquetFile(pa.BufferReader(body), metadata=metadata, read_dictionary=texts)
        # in batches: reading a column with damaged statistics at once ends the process
        return gather(reader, file.iter_batches(batch_size=1024, use_threads=False), file.schema_arrow)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise Malformed("body_malformed", f"The body is not a Parquet file: {error}") from None


def gather(reader: RowReader, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The table of the batches. Raises TooLarge as soon as they exceed the limits."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch.validate(full=True)  # offsets in untrusted bytes may point anywhere
        rows += batch.num_rows
        if rows > reader.max_rows:
            reader.check_size(rows, exactly=False)
        kept.append(batch)
        if len(kept) * len(schema) > MAX_FRAGMENTS and len(kept) > 1:
            kept = pa.Table.from_batches(kept, schema).combine_chunks().to_batches()
    return pa.Table.from_batches(kept, schema)


def check_schema(reader: RowReader, schema: pa.Schema) -> None:
    """Check names and types of columns before any row is read."""
    check_width(reader, len(schema))
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise Malformed("body_malformed", "A column name is not valid UTF-8.") from None
    check_names(reader, names)
    for field in schema:
        if not (field.name == "x" and reader.inputs.takes_files and columns.is_binary(field.type)):
            listed = field.name == "y" and reader.spec["target"]["kind"] == "labels"
            columns.check_type(field.type, reader.field, field.name, listed)


def check_width(reader: RowReader, count: int) -> None:
    known = len(columns.RESERVED) + reader.width
    if count > known:
        message = f"has {count} columns, but this model has {reader.width} features"
        raise Invalid.at((reader.field,), "example_shape_mismatch", message)


def check_names(reader: RowReader, names: list[str]) -> None:
    check_width(reader, len(names))
    if len(set(names)) < len(names):
        raise Invalid("column_invalid", "Two columns have the same name. Rename one of them.")
    for name in reader.needed:
        if name not in names:
            raise Invalid.at((reader.field,), "example_invalid", f"the column {name!r} is missing")
    reader.check_columns(names)


def read_ids(table: pa.Table, field: str) -> pa.StringArray:
    ids = columns.text(table.column("id"), field, "id")
    if ids.null_count:
        raise Invalid.at((field, int(pc.index(ids.is_null(), True).as_py()), "id"), "id_invalid", "is missing")
    return ids


def from_table(reader: ExampleReader, table: pa.Table) -> Batch:
    reader.check_size(table.num_rows)
    names = table.column_names
    ids = read_ids(table, FIELD)
    nothing = [None] * table.num_rows
    subjects = columns.texts(table.column("subject"), FIELD, "subject") if "subject" in names else nothing
    splits = columns.texts(table.column("split"), FIELD, "split") if "split" in names else nothing
    if strange_splits := set(splits) - SPLITS.keys():
        i = next(i for i, split in enumerate(splits) if split in strange_splits)
        raise Invalid.at((FIELD, i, "split"), "example_invalid", "must be 'train', 'holdout' or missing")
    x = reader.inputs.from_columns(table, FIELD)
    y = Targets.of(reader.spec).from_column(table.column("y"), FIELD, reader.unlabelled)
    optional = OptionalColumns(
        subjects=subjects,
        splits=splits,
        weights=weights.from_column(table.column("weight"), FIELD) if "weight" in names else None,
        times=times.from_column(table.column("time"), FIELD) if "time" in names else None,
        sources=columns.texts(table.column("source"), FIELD, "source") if "source" in names else nothing,
        unseen=reader.inputs.unseen_in_columns(table, x, FIELD),
    )
    return reader.batch(ids, x, y, optional)
