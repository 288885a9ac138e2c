"""Examples as tables: CSV, Arrow, Parquet. Names and sizes are looked at before anything is unpacked."""

from __future__ import annotations

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
from service.examples.reader import FIELD, SPLITS, Reader, RowReader
from service.parsing import columns, weights
from service.parsing.targets import Targets

MAX_FRAGMENTS = 100_000
"""Columns times record batches that are kept apart: each costs more than the few numbers that may be in it."""
FEATHER = (b"ARROW1", b"FEA1")
"""How files of Arrow's file format begin, and of the one before it."""
MAX_HEADER_BYTES = 2**24
"""Enough for the names of 10 000 columns."""


def read_csv(reader: Reader, body: bytes) -> Batch:
    try:
        header = re.split(rb"[\r\n]", body[:MAX_HEADER_BYTES], maxsplit=1)[0].decode("utf-8-sig")
        names = next(csv.reader([header.strip()]), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
    if "id" not in names:
        hint = "; is the separator a comma?" if ";" in header or "\t" in header else ""
        raise Invalid.at((FIELD,), "example_invalid", f"the column 'id' is missing{hint}")
    check_names(reader, names)
    lines = max(body.count(b"\n"), body.count(b"\r"))
    max_lines = (
        2 * reader.max_rows if b"\n\n" in body or b"\n\r" in body else reader.max_rows
    )  # as many again may be empty
    if lines > max_lines + 1:
        reader.check_size(lines, exactly=False)
    types = {**reader.inputs.feature_columns(names), **dict.fromkeys(columns.RESERVED - {"x"}, pa.string())}
    try:
        return from_table(reader, parse_csv(body, types))
    except pa.ArrowInvalid as error:
        bad = re.search(r"column #(\d+): Row #(\d+): CSV conversion error", str(error))
        if bad is None:
            raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
        if "UTF8" in str(error):
            column = names[int(bad[1])] if int(bad[1]) < len(names) else int(bad[1])
            # the header is row 1, the first example row 2
            raise Invalid.at((FIELD, int(bad[2]) - 2, column), "example_invalid", "is not UTF-8 text") from None
    # not a number somewhere: true or false, or a mistake whose place is to be told
    table = parse_csv(body, dict.fromkeys(types, pa.string()))
    missing = reader.spec["input"]["kind"] == "table"
    made = {
        name: columns.numbers_in_text(table.column(name), FIELD, name, missing)
        if kind == pa.float64()
        else table.column(name)
        for name, kind in types.items()
        if name in names
    }
    return from_table(reader, pa.table({name: made[name] for name in names}))


def parse_csv(body: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return pa.csv.read_csv(pa.BufferReader(body), pa.csv.ReadOptions(use_threads=False), convert_options=convert)


def read_arrow(reader: Reader, body: bytes) -> Batch:
    return from_table(reader, open_arrow(reader, body))


def read_parquet(reader: Reader, body: bytes) -> Batch:
    return from_table(reader, open_parquet(reader, body))


def open_arrow(reader: RowReader, body: bytes) -> pa.Table:
    """The table of an Arrow stream, within the limits and with the columns that the reader asks for."""
    if body.startswith(FEATHER):
        raise Malformed("body_malformed", "This is Arrow's file format (Feather); send Arrow's stream format.")
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
    """The same of a Parquet file."""
    try:
        sizes = parquet_sizes.sizes_of(body)
        metadata = pa.parquet.read_metadata(pa.BufferReader(body))
        schema = metadata.schema.to_arrow_schema()
        reader.check_size(metadata.num_rows)
        check_schema(reader, schema)
        # the few values of other columns are no reason to refuse as many numbers as may be stored
        reader.check_unpacked(max(sizes.unpacked, 4 * (sizes.values - 8 * reader.max_rows)))
        # texts stay in their dictionary until its length is known: a page can repeat one a million times
        texts = [field.name for field in schema if columns.is_text(field.type)]
        file = pa.parquet.ParquetFile(pa.BufferReader(body), metadata=metadata, read_dictionary=texts)
        # by and by: damaged statistics of a column end the process
        return gather(reader, file.iter_batches(batch_size=1024, use_threads=False), file.schema_arrow)
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise Malformed("body_malformed", f"The body is not a Parquet file: {error}") from None


def gather(reader: RowReader, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The table of some batches, as long as they stay within the limits."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch.validate(full=True)  # offsets in foreign bytes may point anywhere
        rows += batch.num_rows
        if rows > reader.max_rows:
            reader.check_size(rows, exactly=False)
        kept.append(batch)
        if len(kept) * len(schema) > MAX_FRAGMENTS and len(kept) > 1:
            kept = pa.Table.from_batches(kept, schema).combine_chunks().to_batches()
    return pa.Table.from_batches(kept, schema)


def check_schema(reader: RowReader, schema: pa.Schema) -> None:
    """Names and types of columns, before a row of them is read."""
    check_width(reader, len(schema))
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise Malformed("body_malformed", "A column's name is not UTF-8.") from None
    check_names(reader, names)
    for field in schema:
        columns.check_type(field.type, reader.field, field.name)


def check_width(reader: RowReader, count: int) -> None:
    known = len(columns.RESERVED) + reader.inputs.width
    if count > known:
        message = f"{count} columns; this model has {reader.inputs.width} features"
        raise Invalid.at((reader.field,), "example_shape_mismatch", message)


def check_names(reader: RowReader, names: list[str]) -> None:
    check_width(reader, len(names))
    if len(set(names)) < len(names):
        raise Invalid("column_invalid", "Two columns have the same name.")
    for name in reader.needed:
        if name not in names:
            raise Invalid.at((reader.field,), "example_invalid", f"the column {name!r} is missing")
    known = columns.RESERVED if reader.spec["input"]["kind"] != "table" else columns.RESERVED - {"x"}
    strange = set(names) - known - set(reader.inputs.feature_columns(names))
    if strange:
        raise Invalid.at((reader.field,), "example_invalid", f"the column {min(strange)!r} is none of this model's")
    reader.inputs.check_columns(names, reader.field)


def from_table(reader: Reader, table: pa.Table) -> Batch:
    reader.check_size(table.num_rows)
    names = table.column_names
    ids = columns.text(table.column("id"), FIELD, "id")
    if ids.null_count:
        raise Invalid.at((FIELD, int(pc.index(ids.is_null(), True).as_py()), "id"), "id_invalid", "is missing")
    nothing = [None] * table.num_rows
    subjects = columns.texts(table.column("subject"), FIELD, "subject") if "subject" in names else nothing
    splits = columns.texts(table.column("split"), FIELD, "split") if "split" in names else nothing
    if strange_splits := set(splits) - SPLITS.keys():
        i = next(i for i, split in enumerate(splits) if split in strange_splits)
        raise Invalid.at((FIELD, i, "split"), "example_invalid", "must be 'train', 'holdout' or missing")
    x = reader.inputs.from_columns(table, FIELD)
    y = Targets(reader.spec["target"]).from_column(table.column("y"), FIELD)
    given = weights.from_column(table.column("weight"), FIELD) if "weight" in names else None
    return reader.batch(ids, subjects, splits, x, y, given)
