"""A request body -> a `Batch`, by its content type. All that can be wrong with a body is found here."""

from __future__ import annotations

import csv
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from core.errors import AmendError, Invalid, Malformed, TooLarge, Unsupported
from core.ledger.batch import Batch, Split, subject_hashes
from service import columns
from service.inputs import Inputs, inputs_of
from service.targets import Targets

WHERE = "examples"
LONGEST = 200
"""Characters of an id or a subject."""
LIFTED = secrets.randbelow(2**62)
"""What stands for an input that was cut out of a text: nothing that a caller could write there by chance."""
SPLITS: dict[str | None, Split] = {None: None, "train": False, "holdout": True}
ROOMY = 4
"""A compressed body may unpack to this many times the largest plain body."""


@dataclass(frozen=True)
class Reader:
    """What a body is read with: the model's spec, limits, and the key of subject hashes."""

    spec: dict[str, Any]
    max_batch: int
    max_bytes: int
    secret: bytes
    caseless: bool = False
    """Whether subjects are the same whatever their case."""

    def read(self, content_type: str, body: bytes) -> Batch:
        kind = content_type.partition(";")[0].strip().lower() or "application/json"
        if kind not in FORMATS:
            raise Unsupported("content_type_unsupported", f"Send one of: {', '.join(FORMATS)}.")
        return FORMATS[kind](self, body)

    def batch(self, ids: pa.StringArray, subjects: Sequence[Any], splits: Sequence[Any], x: Any, y: Any) -> Batch:
        """The batch of columns whose inputs and targets are checked already."""
        check_ids(ids)
        given = subjects if any(subjects) or "" in subjects else None
        if given is not None:
            check_text([s if s is not None else "-" for s in given], "subject", "subject_invalid")
        hashes = subject_hashes(subjects, self.secret, self.caseless) if given is not None else [None] * len(ids)
        chosen = splits if splits.count(None) == len(splits) else [SPLITS[s] for s in splits]
        return Batch(ids, hashes, x, y, chosen)

    def check_size(self, size: int) -> None:
        if size == 0:
            raise Invalid("batch_empty", "There is no example in the body.")
        if size > self.max_batch:
            raise TooLarge("batch_too_large", f"{size} examples; {self.max_batch} are allowed in one request.")


def check_ids(ids: pa.StringArray) -> None:
    """`check_text` for many at once, as long as they are ASCII, of which a byte is a character."""
    sizes = pc.binary_length(ids).to_numpy()
    start = int(np.frombuffer(ids.buffers()[1], np.int32, 1, ids.offset * 4)[0])
    data = np.frombuffer(ids.buffers()[2], np.uint8, int(sizes.sum()), start)
    if not (sizes.min() > 0 and sizes.max() <= LONGEST and data.min() >= ord(" ") and data.max() <= ord("~")):
        check_text(ids.to_pylist(), "id", "id_invalid")


def check_text(texts: Sequence[Any], name: str, code: str) -> None:
    """Ids and subjects are 1 to 200 printable characters."""
    if all(map(str.isprintable, texts)) and "" not in texts and max(map(len, texts)) <= LONGEST:
        return
    i = next(i for i, t in enumerate(texts) if not (t.isprintable() and 0 < len(t) <= LONGEST))
    raise Invalid.at((WHERE, i, name), code, f"must have 1 to {LONGEST} printable characters")


class Decoders(NamedTuple):
    """Of a whole JSON body, and of JSON lines."""

    body: msgspec.json.Decoder[Any]
    line: msgspec.json.Decoder[Any]


@lru_cache(maxsize=256)
def decoders(x: Any) -> Decoders:
    """Decoders of examples whose input is decoded to `x`."""
    example = msgspec.defstruct(
        "Example",
        [
            ("id", str),
            ("x", x),
            ("y", bool | int | float | str),
            ("subject", str | None, None),
            ("split", Literal["train", "holdout"] | None, None),
        ],
        forbid_unknown_fields=True,
        gc=False,
    )
    body = msgspec.defstruct("Body", [("examples", list[example])], forbid_unknown_fields=True)  # type: ignore[valid-type]
    return Decoders(msgspec.json.Decoder(body), msgspec.json.Decoder(example))


def read_json(reader: Reader, body: bytes) -> Batch:
    return from_objects(reader, body, lambda x, text: decoded(lambda: decoders(x).body.decode(text)).examples)


def read_ndjson(reader: Reader, body: bytes) -> Batch:
    return from_objects(reader, body, lambda x, text: decoded(lambda: decoders(x).line.decode_lines(text), WHERE))


def decoded(decode: Callable[[], Any], where: str | None = None) -> Any:
    """What msgspec decodes; its errors in our words, with their place."""
    try:
        return decode()
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        place = place_of(path.strip("`"))
        if place[-1:] == ("split",):
            message = "must be 'train' or 'holdout'"
        raise Invalid.at((where, *place) if where else place, "example_invalid", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("body_malformed", f"The body is not valid JSON: {error}") from None


def place_of(path: str) -> tuple[str | int, ...]:
    """
    >>> place_of("$.examples[3].x[5]")
    ('examples', 3, 'x', 5)
    """
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path)
    return tuple(name or int(index) for name, index in steps)


def from_objects(reader: Reader, body: bytes, decode: Callable[[Any, bytes], list[Any]]) -> Batch:
    """The batch of decoded objects. `decode` takes what inputs shall be decoded to, and the text."""

    def counted(x: Any) -> list[Any]:
        found = decode(x, body)
        reader.check_size(len(found))
        return found

    inputs = inputs_of(reader.spec)
    examples, x = lifted(reader, inputs, body, decode) or inputs.read(counted, lambda example: example.x, WHERE)
    y = Targets(reader.spec["target"]).from_json([e.y for e in examples], WHERE)
    ids = [e.id for e in examples]
    try:
        given = pa.array(ids, pa.string())
    except UnicodeEncodeError:  # half characters, which are not printable
        check_text(ids, "id", "id_invalid")
        raise
    return reader.batch(given, [e.subject for e in examples], [e.split for e in examples], x, y)


def lifted(
    reader: Reader, inputs: Inputs, body: bytes, decode: Callable[[Any, bytes], list[Any]]
) -> tuple[list[Any], Any] | None:
    """Objects and their inputs, if the inputs are lists of numbers as most programs write them; else None.

    The lists are most of the text. Cut out, they are read in bulk, and the rest of the text is soon decoded.
    `"x":[` cannot stand inside a string, where its second quote would be escaped.
    """
    key = next((key for key in (b'"x":[', b'"x": [') if inputs.reads_raw and key in body[:4096]), None)
    if key is None:
        return None
    before, *parts = body.split(key)
    cuts = [part.partition(b"]") for part in parts]
    rest = (b'"x":%d' % LIFTED).join([before, *[after for _, _, after in cuts]])
    try:
        examples = decode(Literal[LIFTED], rest)
    except AmendError:
        return None
    if len(examples) != len(cuts) or not 0 < len(examples) <= reader.max_batch:
        return None
    x = inputs.from_raw([inside for inside, _, _ in cuts], WHERE, bare=True)
    return None if x is None else (examples, x)


def read_csv(reader: Reader, body: bytes) -> Batch:
    header = body[: 2**20].partition(b"\n")[0].decode("utf-8-sig", "replace")
    try:
        names = next(csv.reader([header.strip()]), [])
    except csv.Error as error:
        raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
    if "id" not in names:
        hint = "; is the separator a comma?" if ";" in header or "\t" in header else ""
        raise Invalid.at((WHERE,), "example_invalid", f"the column 'id' is missing{hint}")
    types = {**inputs_of(reader.spec).feature_columns(names), **dict.fromkeys(columns.RESERVED - {"x"}, pa.string())}
    convert = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    try:
        table = pa.csv.read_csv(pa.BufferReader(body), pa.csv.ReadOptions(use_threads=False), convert_options=convert)
    except pa.ArrowInvalid as error:
        bad = re.search(r"column #(\d+): Row #(\d+): CSV conversion error", str(error))
        if bad is None:
            raise Malformed("body_malformed", f"The body is not valid CSV: {error}") from None
        column = names[int(bad[1])] if int(bad[1]) < len(names) else int(bad[1])
        wrong = "is not UTF-8 text" if "UTF8" in str(error) else "expected a number"
        # the header is row 1, the first example row 2
        raise Invalid.at((WHERE, int(bad[2]) - 2, column), "example_invalid", wrong) from None
    return from_table(reader, table)


def read_arrow(reader: Reader, body: bytes) -> Batch:
    try:
        with pa.ipc.open_stream(pa.BufferReader(body)) as stream:
            table = gathered(reader, stream, stream.schema)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise Malformed("body_malformed", f"The body is not a complete Arrow stream: {error}") from None
    return from_table(reader, table)


def read_parquet(reader: Reader, body: bytes) -> Batch:
    try:
        schema = pa.parquet.read_schema(pa.BufferReader(body))
        # texts stay in their dictionary until its length is known: a page can repeat one a million times
        texts = [field.name for field in schema if columns.is_text(field.type)]
        file = pa.parquet.ParquetFile(pa.BufferReader(body), read_dictionary=texts)
        # by and by, since what it unpacks to cannot be told before: damaged statistics of a column end the process
        table = gathered(reader, file.iter_batches(batch_size=1024, use_threads=False), file.schema_arrow)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Malformed("body_malformed", f"The body is not a Parquet file: {error}") from None
    return from_table(reader, table)


def gathered(reader: Reader, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The table of some batches, as long as they stay within the limits."""
    kept, rows, size = [], 0, 0
    for batch in batches:
        batch.validate(full=True)  # offsets in foreign bytes may point anywhere
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > reader.max_batch:
            reader.check_size(rows)
        if size > ROOMY * reader.max_bytes:
            raise TooLarge("body_too_large", f"The body unpacks to more than {ROOMY * reader.max_bytes} bytes.")
        kept.append(batch)
    return pa.Table.from_batches(kept, schema)


def from_table(reader: Reader, table: pa.Table) -> Batch:
    inputs = inputs_of(reader.spec)
    reader.check_size(table.num_rows)
    try:
        names = table.column_names
    except UnicodeDecodeError:
        raise Malformed("body_malformed", "A column's name is not UTF-8.") from None
    if len(set(names)) < len(names):
        raise Invalid("column_invalid", "Two columns have the same name.")
    for name in ("id", "y"):
        if name not in names:
            raise Invalid.at((WHERE,), "example_invalid", f"the column {name!r} is missing")
    known = columns.RESERVED if reader.spec["input"]["kind"] != "table" else columns.RESERVED - {"x"}
    strange = set(names) - known - set(inputs.feature_columns(names))
    if strange:
        raise Invalid.at((WHERE,), "example_invalid", f"the column {min(strange)!r} is none of this model's")
    ids = columns.text(table.column("id"), WHERE, "id")
    if ids.null_count:
        raise Invalid.at((WHERE, int(pc.index(ids.is_null(), True).as_py()), "id"), "id_invalid", "is missing")
    nothing = [None] * table.num_rows
    subjects = columns.texts(table.column("subject"), WHERE, "subject") if "subject" in names else nothing
    splits = columns.texts(table.column("split"), WHERE, "split") if "split" in names else nothing
    if strange_splits := set(splits) - SPLITS.keys():
        i = next(i for i, split in enumerate(splits) if split in strange_splits)
        raise Invalid.at((WHERE, i, "split"), "example_invalid", "must be 'train', 'holdout' or missing")
    x = inputs.from_columns(table, WHERE)
    y = Targets(reader.spec["target"]).from_column(table.column("y"), WHERE)
    return reader.batch(ids, subjects, splits, x, y)


FORMATS: dict[str, Callable[[Reader, bytes], Batch]] = {
    "application/json": read_json,
    "application/x-ndjson": read_ndjson,
    "text/csv": read_csv,
    "application/vnd.apache.arrow.stream": read_arrow,
    "application/vnd.apache.parquet": read_parquet,
}
