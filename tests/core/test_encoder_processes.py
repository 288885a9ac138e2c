"""Child processes of ONNX encoders: what they load, how they end, and how many there are."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from core.encoders.loaded_encoders import MAX_CHILDREN, FrozenEncoders, OnnxEncoder
from core.encoders.sandbox import ModelRefused, Sandbox
from core.encoders.uploads import file_name
from core.errors import Unavailable
from core.inference.frozen_encoders import onnx_encoder
from core.kprior.model.spec import PredictorSpec
from core.settings import Settings
from core.versions.store import Store
from tests.core.encoders import in_ort_format, model, projection, tensor, two_formats

MEMORY, SECONDS = 4 * 2**30, 60.0


EARLIER: set[int] = set()
"""Ids of processes that other tests started."""


def children() -> list[psutil.Process]:
    """The processes that run encoders for this test."""
    running = [one for one in psutil.Process().children() if any("onnx_child" in part for part in one.cmdline())]
    return [one for one in running if one.pid not in EARLIER]


@pytest.fixture(autouse=True)
def ignore_processes_of_other_tests() -> None:
    EARLIER.update(one.pid for one in children())


def test_a_file_in_two_formats_is_refused(tmp_path: Path) -> None:
    x, y = tensor("x", TensorProto.FLOAT, [None, 3]), tensor("y", TensorProto.FLOAT, [None, 3])
    random = in_ort_format(model([helper.make_node("RandomNormalLike", ["x"], ["y"])], [x], [y]), tmp_path)
    good = model([helper.make_node("Identity", ["x"], ["y"])], [x], [y])
    content = two_formats(random, good)
    assert [node.op_type for node in onnx.ModelProto.FromString(content).graph.node] == ["Identity"]
    for refused in (random, content):
        sandbox = Sandbox(partial(bytes, refused), MEMORY, SECONDS)
        with pytest.raises(ModelRefused, match="format of onnxruntime"):
            sandbox.check()
        with pytest.raises(ModelRefused, match="format of onnxruntime"):
            sandbox.load()
        sandbox.close()
    # a published model reads it as ONNX, or not at all
    rows = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(onnx_encoder(content, {"kind": "vector", "dim": 3})(rows), rows)


def test_a_child_that_refused_its_model_ends_and_the_next_call_starts_another() -> None:
    good, W = projection(3, 2)
    files = [good, b"garbage", b"garbage"]
    sandbox = Sandbox(lambda: files.pop(), MEMORY, SECONDS)
    encoder = OnnxEncoder(lambda: sandbox, {"kind": "vector", "dim": 3}, 2)
    x = np.ones((4, 3), np.float32)
    for _ in range(2):
        with pytest.raises(Unavailable, match="not an ONNX model") as error:
            encoder(x)
        assert error.value.code == "encoder_failed"
        assert not children()
    np.testing.assert_allclose(encoder(x), np.tanh(x @ W), atol=1e-6)
    assert len(children()) == 1
    sandbox.close()
    assert not children()


def test_encoders_share_a_limited_number_of_processes(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    encoders, x = FrozenEncoders(store, Settings()), np.ones((2, 3), np.float32)
    made = []
    for seed in range(MAX_CHILDREN + 2):
        content, W = projection(3, 2, seed)
        digest = hashlib.sha256(content).hexdigest()
        store.write(file_name(digest), content)
        encoder = {"kind": "onnx", "digest": f"sha256:{digest}", "features": 2}
        architecture = {"kind": "linear", "encoder": encoder}
        spec = {"input": {"kind": "vector", "dim": 3}, "target": {"kind": "binary"}, "architecture": architecture}
        made.append((encoders.find(cast("PredictorSpec", spec)), W))
    for encode, W in [*made, made[0]]:
        assert encode is not None
        np.testing.assert_allclose(encode(x), np.tanh(x @ W), atol=1e-6)
        assert len(children()) <= MAX_CHILDREN
    assert len(children()) == MAX_CHILDREN
    encoders.close()
    assert not children()
