"""Images as PNG and JPEG files are read as the pixels that they show."""

from __future__ import annotations

import base64
import io

import httpx
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.stack import Stack

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
"""4 high, 6 wide."""


def file_of(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, kind)
    return target.getvalue()


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_files_are_the_pixels_they_show(stack: Stack, api: httpx.Client, dtype: str) -> None:
    name = stack.model(input={"kind": "image", "shape": [3, 4, 6], "dtype": dtype})
    jpeg = file_of(PIXELS, "JPEG")
    shown = np.asarray(Image.open(io.BytesIO(jpeg)))
    xs = [text_of(file_of(PIXELS)), f"data:image/jpeg;base64,{text_of(jpeg)}", text_of(file_of(PIXELS[:, :, 0]))]
    rows = [{"id": str(i), "x": x, "y": 1} for i, x in enumerate(xs)]
    assert api.post(f"/v1/models/{name}/examples", json={"examples": rows}).json()["accepted"] == 3
    table = pa.table({"id": ["3"], "y": [0], "x": pa.array([file_of(PIXELS)], pa.binary())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    added = api.post(f"/v1/models/{name}/examples", content=sink.getvalue(), headers=headers)
    assert added.json()["accepted"] == 1, added.text
    grey = np.repeat(PIXELS[:, :, :1], 3, 2)
    unit = 1 if dtype == "uint8" else 255
    for i, expected in enumerate([PIXELS, shown, grey, PIXELS]):
        found = np.array(api.get(f"/v1/models/{name}/examples/{i}").json()["x"])
        np.testing.assert_allclose(found, expected.transpose(2, 0, 1) / unit, atol=1e-7)


@pytest.mark.parametrize(
    "content",
    [b"", b"GIF89a", file_of(PIXELS)[:40], file_of(PIXELS[:, :5]), file_of(np.zeros((4, 60_000, 3), np.uint8))],
    ids=["empty", "another format", "truncated", "wrong size", "large"],
)
def test_other_files_are_refused_with_their_place(stack: Stack, api: httpx.Client, content: bytes) -> None:
    name = stack.model(input={"kind": "image", "shape": [3, 4, 6]})
    rows = [{"id": "a", "x": text_of(file_of(PIXELS)), "y": 1}, {"id": "b", "x": text_of(content), "y": 1}]
    refused = api.post(f"/v1/models/{name}/examples", json={"examples": rows})
    assert (refused.status_code, refused.json()["code"]) == (422, "image_invalid"), refused.text
    assert refused.json()["errors"][0]["loc"] == ["examples", 1, "x"]
