"""Splits a large JSON body into small ones: numbers as Python objects take thirty times the memory of their text.

    pieces(b'{"inputs": [[1], [2], [3]]}', "inputs", ...)     b'{"inputs": [[1], [2]]}', b'{"inputs": [[3]]}'

This module looks only for brackets, quotes and commas. The decoders of the pieces, and of the rest of the body without
the list, find all other errors.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np

from core.errors import AmendError, Invalid, Malformed

MAX_UNSPLIT_BYTES = 2**22
"""Size of the largest body that is decoded at once."""
CHUNK_BYTES = 2**20
QUOTE, COMMA, OPENING_BRACKET = ord('"'), ord(","), ord("[")
DEPTH_CHANGES = np.zeros(256, np.int8)
DEPTH_CHANGES[[OPENING_BRACKET, ord("{")]] = 1
DEPTH_CHANGES[[ord("]"), ord("}")]] = -1


class Array(NamedTuple):
    """A list in the outermost object: its start, its end and the commas between its items."""

    start: int
    end: int
    commas: list[int]


def arrays(body: bytes, max_items: int) -> list[Array]:
    """The lists in the outermost object, each with at most `max_items + 1` commas."""
    # replaced by blanks, so that positions stay the same
    plain = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in body else body
    data = np.frombuffer(plain, np.uint8)
    found: list[Array] = []
    depth, quoted, opener = 0, False, 0
    current = Array(0, 0, [])
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        inside = (np.cumsum(chunk == QUOTE, dtype=np.int32) + quoted) % 2 == 1
        step = np.where(inside, np.int8(0), DEPTH_CHANGES[chunk])
        level = np.cumsum(step, dtype=np.int32) + depth
        marked = ((step > 0) & (level == 2)) | ((step < 0) & (level == 1))
        if len(current.commas) <= max_items:
            marked |= (chunk == COMMA) & (level == 2) & ~inside
        depth, quoted = int(level[-1]), bool(inside[-1])
        if level.min() < 0:
            raise Malformed("body_malformed", "The body is not valid JSON: it has an unmatched closing bracket.")
        for i in (np.flatnonzero(marked) + start).tolist():
            if plain[i] == COMMA:
                if opener == OPENING_BRACKET and len(current.commas) <= max_items:
                    current.commas.append(i)
            elif DEPTH_CHANGES[plain[i]] > 0:
                opener, current = plain[i], Array(i + 1, 0, [])
            elif opener == OPENING_BRACKET:
                found.append(current._replace(end=i))
    if depth or quoted:
        raise Malformed("body_malformed", "The body is not valid JSON: it is incomplete.")
    return found


def pieces(
    body: bytes,
    name: str,
    max_items: int,
    max_commas: int,
    check: Callable[[int, bool], None],
    decode_rest: Callable[[bytes], Any],
) -> Iterator[bytes]:
    """Split a body into smaller ones, each with a part of the list.

    `check` is called with the number of items and whether it is exact, and raises if there are more than `max_items`.
    `decode_rest` is called with the body without the items. An item with more than `max_commas` is an error.
    """
    found = arrays(body, max_items)
    kept, last = [], 0
    for array in found:
        kept.append(body[last : array.start])
        last = array.end
    decode_rest(b"".join([*kept, body[last:]]))
    # other lists are short: `decode_rest` has checked their names, and the caller reads them
    named = [array for array in found if re.search(rb'"%s"\s*:\s*\[$' % name.encode(), body[: array.start][-200:])]
    if len(named or found) != 1:
        raise Invalid.at((name,), "request_invalid", "the body must contain exactly one list")
    [array] = named or found
    ends = [*array.commas, array.end]
    check(len(ends) if body[array.start : array.end].strip() else 0, len(ends) <= max_items)
    start = before = array.start
    for i, end in enumerate(ends):
        if end - before > CHUNK_BYTES:
            check_item(body[before:end], name, i, max_commas)
        if end - start >= CHUNK_BYTES or i == len(ends) - 1:
            yield b'{"%s":[%s]}' % (name.encode(), body[start:end])
            start = end + 1
        before = end + 1


def lines(body: bytes, name: str, max_commas: int) -> Iterator[bytes]:
    """Chunks of whole lines."""
    start = count = 0
    while start < len(body):
        end = body.rfind(b"\n", start, start + CHUNK_BYTES) + 1 or body.find(b"\n", start) + 1 or len(body)
        chunk = body[start:end].strip()
        if len(chunk) > CHUNK_BYTES:
            check_item(chunk, name, count, max_commas)
        count += chunk.count(b"\n") + 1
        if chunk:
            yield chunk
        start = end


def check_item(text: bytes, name: str, index: int, max_commas: int) -> None:
    if text.count(b",") > max_commas:
        raise Invalid.at((name, index), "example_shape_mismatch", "has more numbers than inputs of this model")


def shift_errors(name: str, first: int) -> AbstractContextManager[None]:
    """Add `first` to the index in the locations of errors, for a piece that starts there."""
    return move_errors(name, lambda row: row + first)


def relocate(name: str, rows: Sequence[int]) -> AbstractContextManager[None]:
    """Correct the index in the locations of errors, for a list that has only some rows of the one that was sent."""
    return move_errors(name, lambda row: rows[row])


def rename_errors(name: str, new: str) -> AbstractContextManager[None]:
    """Replace the list in the locations of errors, for rows that come from another list of the request."""
    return move_errors(name, lambda row: row, new)


@contextmanager
def move_errors(name: str, move: Callable[[int], int], new: str | None = None) -> Iterator[None]:
    try:
        yield
    except AmendError as error:
        for place in error.errors:
            loc = list(place["loc"])
            if len(loc) > 1 and loc[0] == name and isinstance(loc[1], int):
                place["loc"] = [new or name, move(loc[1]), *loc[2:]]
                error.detail = f"{'.'.join(map(str, place['loc']))}: {place['msg']}"
        raise


@contextmanager
def errors_of_one(name: str) -> Iterator[None]:
    """Remove the list and the index from the locations of errors, for a body that is a single item."""
    try:
        yield
    except AmendError as error:
        for place in error.errors:
            if place["loc"][:2] == [name, 0]:
                place["loc"] = place["loc"][2:]
                whole = f"{place['msg'][:1].upper()}{place['msg'][1:]}."
                error.detail = f"{'.'.join(map(str, place['loc']))}: {place['msg']}" if place["loc"] else whole
        raise
