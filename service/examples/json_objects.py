"""Examples as JSON objects: a JSON body, or one object per line (NDJSON)."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.errors import AmendError, Invalid, Malformed
from core.kprior.data.label_sets import MAX_LABELS
from core.ledger.batch import Batch
from service.examples.readers import FIELD, ExampleReader, OptionalColumns, check_text
from service.parsing import json_items, times, weights
from service.parsing.targets import Targets

LIFTED = secrets.randbelow(2**62)
"""Placeholder for an input that was cut out of a text; random, so that no caller can send it."""


Label = bool | int | float | str | list[bool | int | float | str] | None


class Decoders(NamedTuple):
    """Decoders of a JSON body, of a JSON line, and of one example without its id."""

    body: msgspec.json.Decoder[Any]
    line: msgspec.json.Decoder[Any]
    content: msgspec.json.Decoder[Any]


@lru_cache(maxsize=256)
def decoders(x: Any) -> Decoders:
    """Decoders of examples whose input has the type `x`."""
    content: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("x", x),
        ("y", Label),
        ("subject", str | None, None),
        ("split", Literal["train", "holdout"] | None, None),
        ("weight", float | None, None),
        ("time", str | None, None),
        ("source", str | None, None),
    ]
    example = msgspec.defstruct("Example", [("id", str), *content], forbid_unknown_fields=True, gc=False)
    one = msgspec.defstruct("Content", content, forbid_unknown_fields=True)
    body = msgspec.defstruct("Body", [("examples", list[example])], forbid_unknown_fields=True)  # type: ignore[valid-type]
    return Decoders(msgspec.json.Decoder(body), msgspec.json.Decoder(example), msgspec.json.Decoder(one))


def read_json(reader: ExampleReader, body: bytes) -> Batch:
    def decode(x: Any, text: bytes) -> list[Any]:
        examples: list[Any] = decode_or_refuse(lambda: decoders(x).body.decode(text)).examples
        return examples

    if len(body) <= json_items.MAX_UNSPLIT_BYTES:
        return from_objects(reader, body, decode)
    if lifted := lift_inputs(reader, body, decode):
        return assemble(reader, *lifted)
    parts = json_items.pieces(
        body,
        FIELD,
        reader.max_rows,
        max_commas(reader),
        reader.check_size,
        lambda rest: decode(msgspec.Raw, rest),
    )
    return read_parts(reader, parts, decode)


def read_ndjson(reader: ExampleReader, body: bytes) -> Batch:
    def decode(x: Any, text: bytes) -> list[Any]:
        examples: list[Any] = decode_or_refuse(lambda: decoders(x).line.decode_lines(text), FIELD)
        return examples

    if len(body) <= json_items.MAX_UNSPLIT_BYTES:
        return from_objects(reader, body, decode)
    return read_parts(reader, json_items.lines(body, FIELD, max_commas(reader)), decode)


def read_one(reader: ExampleReader, id: str, body: bytes) -> Batch:
    """The batch of one example whose id is not in the body."""

    def decode(x: Any, text: bytes) -> list[Any]:
        content = decode_or_refuse(lambda: decoders(x).content.decode(text))
        return [decoders(x).line.type(id=id, **msgspec.structs.asdict(content))]

    if len(body) > json_items.CHUNK_BYTES:
        json_items.check_item(body, FIELD, 0, max_commas(reader))
    return from_objects(reader, body, decode)


def max_commas(reader: ExampleReader) -> int:
    """Largest number of commas in one example."""
    return reader.inputs.max_commas + MAX_LABELS


def read_parts(reader: ExampleReader, parts: Iterator[bytes], decode: Callable[[Any, bytes], list[Any]]) -> Batch:
    """The batch of a body that is decoded part by part."""
    batches: list[Batch] = []
    total = 0
    for part in parts:
        with json_items.shift_errors(FIELD, total):
            batches.append(from_objects(reader, part, decode, whole=False))
        total += len(batches[-1])
        if total > reader.max_rows:
            reader.check_size(total, exactly=False)
    reader.check_size(total)
    return Batch(
        pa.concat_arrays([batch.ids for batch in batches]),
        [subject for batch in batches for subject in batch.subjects],
        np.concatenate([batch.x for batch in batches]),
        np.concatenate([batch.y for batch in batches]),
        [split for batch in batches for split in batch.splits],
        weights=join_weights(batches),
        times=join_times(batches),
        sources=join_texts([batch.sources for batch in batches], batches),
        unseen=join_texts([batch.unseen for batch in batches], batches),
    )


def join_weights(batches: Sequence[Batch]) -> NDArray[np.float64] | None:
    """The weights of several batches; None if no batch has weights."""
    if all(batch.weights is None for batch in batches):
        return None
    return np.concatenate([np.full(len(b), np.nan) if b.weights is None else b.weights for b in batches])


def join_times(batches: Sequence[Batch]) -> NDArray[np.datetime64] | None:
    """The times of several batches; None if no example has one."""
    if all(batch.times is None for batch in batches):
        return None
    return np.concatenate([np.full(len(b), "NaT", "M8[us]") if b.times is None else b.times for b in batches])


def join_texts(given: Sequence[Sequence[str | None] | None], batches: Sequence[Batch]) -> list[str | None] | None:
    """The sources, or unseen values, of several batches; None if no example has one."""
    if all(texts is None for texts in given):
        return None
    return [text for texts, batch in zip(given, batches, strict=True) for text in (texts or [None] * len(batch))]


EXPECTED = {"split": "must be 'train' or 'holdout'"}
"""Messages for fields with few permitted values."""


def decode_or_refuse(
    decode: Callable[[], Any],
    *location: str | int,
    code: str = "example_invalid",
    messages: Mapping[str, str] = EXPECTED,
) -> Any:
    """Call a msgspec decoder and translate its errors; `location` is the first part of their location."""
    try:
        return decode()
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        path_in_item = parse_path(path.strip("`"))
        field = path_in_item[-1] if path_in_item else None
        description = messages[field] if isinstance(field, str) and field in messages else translate_message(message)
        if field == "weight" and "x" not in path_in_item:
            code, description = weights.ERROR_CODE, weights.ERROR_MESSAGE
        raise Invalid.at((*location, *path_in_item), code, description) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed("body_malformed", f"The body is not valid JSON: {error}") from None


TYPES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "text",
}


def translate_message(message: str) -> str:
    """Translate an error message of msgspec. Clients send NaN as null.

    >>> translate_message("Expected `bool | float | null`, got `str`")
    'must be a number, true or false, or null'
    >>> translate_message("Expected `float`, got `null`")
    'must be a number, and not missing (null or NaN)'
    >>> translate_message("Object missing required field `y`")
    '`y` is missing'
    """
    if match := re.match(r"Object missing required field (`.*`)$", message):
        return f"{match[1]} is missing"
    if match := re.match(r"Object contains unknown field (`.*`)$", message):
        return f"unknown field {match[1]}"
    match = re.match(r"Expected `([^`]*)`(, got `[^`]*`)?$", message)
    kinds = [TYPES.get(kind) for kind in match[1].split(" | ")] if match else [None]
    if None in kinds:
        return message
    # numbers and texts first, null last
    *others, last = sorted(map(str, kinds), key=lambda kind: (kind == "null", kind == "true or false", kind))
    missing = ", and not missing (null or NaN)" if message.endswith(", got `null`") else ""
    return f"must be {', '.join(others)}{', or ' if others else ''}{last}{missing}"


def parse_path(path: str) -> tuple[str | int, ...]:
    """
    >>> parse_path("$.examples[3].x[5]")
    ('examples', 3, 'x', 5)
    """
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d+)\]", path)
    return tuple(name or int(index) for name, index in steps)


def from_objects(
    reader: ExampleReader, body: bytes, decode: Callable[[Any, bytes], list[Any]], whole: bool = True
) -> Batch:
    """The batch of a text. `decode` takes the type to decode inputs to, and the text."""

    def decode_counted(x: Any) -> list[Any]:
        examples = decode(x, body)
        reader.check_size(len(examples), whole)
        return examples

    decoded = lift_inputs(reader, body, decode) or reader.inputs.read(decode_counted, lambda example: example.x, FIELD)
    return assemble(reader, *decoded)


def assemble(reader: ExampleReader, examples: Sequence[Any], x: NDArray[Any]) -> Batch:
    """The batch of decoded objects and their inputs."""
    y = Targets.of(reader.spec).from_json([e.y for e in examples], FIELD, reader.unlabelled)
    given_weights = weights.from_json([e.weight for e in examples], FIELD)
    ids = [e.id for e in examples]
    try:
        given = pa.array(ids, pa.string())
    except UnicodeEncodeError:  # lone surrogates, which are not printable
        check_text(ids, "id", "id_invalid")
        raise
    optional = OptionalColumns(
        subjects=[e.subject for e in examples],
        splits=[e.split for e in examples],
        weights=given_weights,
        times=times.from_texts([e.time for e in examples], FIELD),
        sources=[e.source for e in examples],
        unseen=reader.inputs.unseen_in_json(lambda: [e.x for e in examples], x),
    )
    return reader.batch(given, x, y, optional)


def lift_inputs(
    reader: ExampleReader, body: bytes, decode: Callable[[Any, bytes], list[Any]]
) -> tuple[Sequence[Any], Any] | None:
    """The decoded objects and their inputs, if the inputs are lists of numbers in the usual notation; otherwise None.

    Most of the text is lists of numbers. They are cut out and parsed in bulk, which leaves little text to decode.
    `"x":[` cannot occur inside a string, where its quotes would be escaped.
    """
    inputs = reader.inputs
    key = next((key for key in (b'"x":[', b'"x": [') if inputs.reads_raw and key in body[:4096]), None)
    if key is None or body.count(key) > reader.max_rows:
        return None
    before, *parts = body.split(key)
    cuts = [part.partition(b"]") for part in parts]
    rest = (b'"x":%d' % LIFTED).join([before, *[after for _, _, after in cuts]])
    try:
        examples = decode(Literal[LIFTED], rest)
    except AmendError:
        return None
    if len(examples) != len(cuts) or not 0 < len(examples) <= reader.max_rows:
        return None
    x = inputs.from_raw([inside for inside, _, _ in cuts], FIELD, bare=True)
    return None if x is None else (examples, x)
