"""A body that is parsed piece by piece gives the same result as one that is parsed at once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from core.errors import AmendError
from service.examples import formats
from service.examples.readers import ExampleReader
from service.parsing import json_items
from tests.service.bodies import NDJSON

SPECS: dict[str, dict[str, Any]] = {
    "vector": {"kind": "vector", "dim": 2},
    "image": {"kind": "image", "shape": [1, 2, 1], "dtype": "uint8"},
    "table": {
        "kind": "table",
        "columns": [
            {"name": 'n "[', "type": "number"},
            {"name": "c", "type": "category", "values": ["a,]", "\\"]},
        ],
    },
}
GOOD = {
    "vector": ["[1, 2]", "[1,2.5]", "[ 3,\n4 ]", "[true, 0]"],
    "image": ["[[[1], [2]]]", "[[[1],[2]]]", "[[[ 7],\t[0]]]"],
    "table": [
        r'{"n \"[": 1, "c": "a,]"}',
        r'{"c": "\\", "n \"[": null}',
        r'{"c": "\u005c", "n \"[": -2}',
    ],
}
BAD = {
    "vector": ["[1]", "[1, null]", "[[1], 2]", "null", '"[1,2]"', "[1,2,3]", "{}"],
    "image": ["[[[1], [256]]]", "[[[1]]]", "[[1, 2]]", "[]", "0"],
    "table": [r'{"n \"[": "1", "c": "a,]"}', r'{"n \"[": 1, "c": "b"}', r'{"n \"[": 1}', "[]"],
}
IDS = [r"a", r"\"", r"\\", r"],[", r"}{", r"\\\"", "ü", r"\u0022x\u0022:["]
FORMS = ['{{"examples": [{}]}}', '{{ "examples":[{}] }}', '{{"examples":[{}],"more":[1]}}', '{{"e":[{}]}}', "[{}]"]


def bodies(kind: str, count: int) -> list[bytes]:
    """Examples of which one may be bad, or good ones in a body that is none."""
    chosen = random.Random(7)
    made = []
    for i in range(count):
        many = chosen.randrange(7)
        bad = chosen.randrange(many) if i % 2 and many else -1
        examples = [
            f'{{"id": "{chosen.choice(IDS)}{j}", "y": {2 if j == bad and i % 4 == 1 else 1}, '
            f'"x": {chosen.choice(BAD[kind] if j == bad and i % 4 == 3 else GOOD[kind])}}}'
            for j in range(many)
        ]
        form = FORMS[0] if i % 2 else chosen.choice(FORMS)
        made.append(form.format(", ".join(examples)).encode())
    return made


def said(kind: str, content_type: str, body: bytes) -> Any:
    """The batch, or the error and its place."""
    try:
        batch = formats.read(
            ExampleReader({"input": SPECS[kind], "target": {"kind": "binary"}}, 9, 4096, b"key"), content_type, body
        )
    except AmendError as error:
        places = [] if error.code == "body_malformed" else [place["loc"] for place in error.errors]
        return error.code, places
    return batch.ids.to_pylist(), np.nan_to_num(batch.x, nan=-9).tolist(), batch.y.tolist()


@pytest.mark.parametrize("content_type", ["application/json", NDJSON])
@pytest.mark.parametrize("kind", SPECS)
def test_pieces_give_the_same_result_as_the_whole(
    monkeypatch: pytest.MonkeyPatch, kind: str, content_type: str
) -> None:
    given = bodies(kind, 120)
    if content_type == NDJSON:
        cut = [body.removeprefix(b'{"examples": [').removesuffix(b"]}") for body in given]
        given = [b"}\n{".join(b" ".join(part.split()) for part in body.split(b"}, {")) for body in cut]
    expected = [said(kind, content_type, body) for body in given]
    assert sum(len(answer) == 3 for answer in expected) > 5
    monkeypatch.setattr(json_items, "MAX_UNSPLIT_BYTES", 0)
    for size in (1, 16, 200):
        monkeypatch.setattr(json_items, "CHUNK_BYTES", size)
        for body, answer in zip(given, expected, strict=True):
            assert said(kind, content_type, body) == answer, (size, body)
            for end in (len(body) // 3, len(body) - 1):
                if content_type != NDJSON:
                    assert len(said(kind, content_type, body[:end])) == 2, (size, body[:end])
