"""Reads JSON that may be hostile: strict syntax, and fields of known types.

Every problem is a `Refuted` that names the file and the field.
"""

import base64
import binascii
import json
import math
import re
from typing import Any, NoReturn

from amend.verification.findings import Refuted

DIGEST = re.compile("[0-9a-f]{64}")
MAX_INTEGER = 2**53
MAX_DEPTH = 60
"""Maximum nesting of lists and objects."""


def parse(content: bytes, where: str) -> Any:
    """Parse JSON without duplicate names, infinite numbers or deep nesting."""
    try:
        value = json.loads(
            content.decode(), object_pairs_hook=unique, parse_constant=refuse_constant, parse_float=finite
        )
    except RecursionError:
        raise Refuted(f"{where} is nested too deeply.") from None
    except ValueError as error:  # includes wrong UTF-8
        raise Refuted(f"{where} is not valid JSON: {error}.") from None
    if depth_exceeds(value, MAX_DEPTH):
        raise Refuted(f"{where} is nested too deeply.")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def depth_exceeds(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(depth_exceeds(one, depth - 1) for one in inner)


def canonical(value: Any, where: str) -> bytes:
    """The bytes of a record that are hashed."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except ValueError:  # half of a surrogate pair
        raise Refuted(f"{where} contains text that is not valid Unicode.") from None


class Document:
    """A JSON object whose fields are read by type."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Refuted(f"{where} must be a JSON object.")
        self.fields: dict[str, Any] = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def wrong(self, name: str, expected: str) -> Refuted:
        return Refuted(f"{self.where}: `{name}` must be {expected}.")

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def integer(self, name: str) -> int:
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
            raise self.wrong(name, "an integer, at least 0")
        return value

    def number(self, name: str) -> float:
        value = self.fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300:
            raise self.wrong(name, "a number")
        return float(value)

    def digest(self, name: str) -> bytes:
        """A SHA-256 digest, written as 64 lowercase hexadecimal digits."""
        return as_digest(self.fields.get(name), f"{self.where}: `{name}`")

    def digests(self, name: str) -> list[bytes]:
        return [as_digest(value, f"{self.where}: `{name}`") for value in self.items(name)]

    def base64(self, name: str) -> bytes:
        try:
            return base64.b64decode(self.text(name), validate=True)
        except (binascii.Error, ValueError):
            raise self.wrong(name, "base64") from None

    def items(self, name: str) -> list[Any]:
        value = self.fields.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def inner(self, name: str) -> "Document":
        return Document(self.fields.get(name), f"{self.where}: `{name}`")


def as_digest(value: Any, where: str) -> bytes:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise Refuted(f"{where} must be 64 lowercase hexadecimal digits.")
    return bytes.fromhex(value)
