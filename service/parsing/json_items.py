"""A large body of JSON as many small ones: as Python objects, numbers take thirty times the memory of their text.

    pieces(b'{"inputs": [[1], [2], [3]]}', "inputs", ...)     b'{"inputs": [[1], [2]]}', b'{"inputs": [[3]]}'

The whole is looked at for brackets, quotes and commas alone. Whatever else is wrong, the decoder of the pieces finds,
and that of what is left when the list is taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from core.errors import AmendError, Invalid, Malformed

MAX_UNSPLIT_BYTES = 2**22
"""The largest body that is decoded in one go."""
CHUNK_BYTES = 2**20
QUOTE, COMMA, OPENING_BRACKET = ord('"'), ord(","), ord("[")
DEPTH_CHANGES = np.zeros(256, np.int8)
DEPTH_CHANGES[[OPENING_BRACKET, ord("{")]] = 1
DEPTH_CHANGES[[ord("]"), ord("}")]] = -1


class Array(NamedTuple):
    """A list that stands in the outermost object: where it begins and ends, and the commas between its items."""

    start: int
    end: int
    commas: list[int]


def arrays(body: bytes, max_items: int) -> list[Array]:
    """The lists in the outermost object; of more than `max_items` commas the others are left out."""
    # blanked, not taken out: places stay what they are
    plain = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ") if b"\\" in body else body
    data = np.frombuffer(plain, np.uint8)
    found: list[Array] = []
    depth, quoted, opener = 0, False, 0
    current = Array(0, 0, [])
    for start in range(0, len(data), CHUNK_BYTES):
        some = data[start : start + CHUNK_BYTES]
        inside = (np.cumsum(some == QUOTE, dtype=np.int32) + quoted) % 2 == 1
        step = np.where(inside, np.int8(0), DEPTH_CHANGES[some])
        level = np.cumsum(step, dtype=np.int32) + depth
        marked = ((step > 0) & (level == 2)) | ((step < 0) & (level == 1))
        if len(current.commas) <= max_items:
            marked |= (some == COMMA) & (level == 2) & ~inside
        depth, quoted = int(level[-1]), bool(inside[-1])
        if level.min() < 0:
            raise Malformed("body_malformed", "The body is not valid JSON: a bracket is closed that was never opened.")
        for i in (np.flatnonzero(marked) + start).tolist():
            if plain[i] == COMMA:
                if opener == OPENING_BRACKET and len(current.commas) <= max_items:
                    current.commas.append(i)
            elif DEPTH_CHANGES[plain[i]] > 0:
                opener, current = plain[i], Array(i + 1, 0, [])
            elif opener == OPENING_BRACKET:
                found.append(current._replace(end=i))
    if depth or quoted:
        raise Malformed("body_malformed", "The body is not valid JSON: it ends too early.")
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

    `check` is called with the number of items and whether it is exact, and raises if there are more than `max_items`;
    `decode_rest` is called with the body without them. An item with more than `max_commas` has more numbers than any
    input.
    """
    found = arrays(body, max_items)
    kept, last = [], 0
    for array in found:
        kept.append(body[last : array.start])
        last = array.end
    decode_rest(b"".join([*kept, body[last:]]))
    if len(found) != 1:
        raise Invalid.at((name,), "request_invalid", "expected one list")
    [array] = found
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
    """Some lines at a time."""
    start = count = 0
    while start < len(body):
        end = body.rfind(b"\n", start, start + CHUNK_BYTES) + 1 or body.find(b"\n", start) + 1 or len(body)
        some = body[start:end].strip()
        if len(some) > CHUNK_BYTES:
            check_item(some, name, count, max_commas)
        count += some.count(b"\n") + 1
        if some:
            yield some
        start = end


def check_item(text: bytes, name: str, index: int, max_commas: int) -> None:
    if text.count(b",") > max_commas:
        raise Invalid.at((name, index), "example_shape_mismatch", "has more numbers than an input of this model")


@contextmanager
def shift_errors(name: str, first: int) -> Iterator[None]:
    """Errors in a piece become errors in the whole."""
    try:
        yield
    except AmendError as error:
        for place in error.errors:
            loc = list(place["loc"])
            if first and len(loc) > 1 and loc[0] == name and isinstance(loc[1], int):
                place["loc"] = [name, loc[1] + first, *loc[2:]]
                error.detail = f"{'.'.join(map(str, place['loc']))}: {place['msg']}"
        raise


@contextmanager
def errors_of_one(name: str) -> Iterator[None]:
    """Errors of the only item of a list become errors of a body that is the item."""
    try:
        yield
    except AmendError as error:
        for place in error.errors:
            if place["loc"][:2] == [name, 0]:
                place["loc"] = place["loc"][2:]
                whole = f"{place['msg'][:1].upper()}{place['msg'][1:]}."
                error.detail = f"{'.'.join(map(str, place['loc']))}: {place['msg']}" if place["loc"] else whole
        raise
