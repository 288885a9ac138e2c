"""Small ONNX encoders, good ones and hostile ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import AttributeProto, SparseTensorProto, TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
Value = Any


def tensor(name: str, kind: int, shape: list[int | None]) -> Value:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Value], outputs: list[Value], constants: Any = ()) -> bytes:
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, list(constants))
    content: bytes = helper.make_model(graph, opset_imports=OPSETS, ir_version=8).SerializeToString()
    return content


def projection(dim: int, features: int, seed: int = 0) -> tuple[bytes, np.ndarray]:
    """tanh(x W), and W."""
    W = np.random.default_rng(seed).normal(size=(dim, features)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "W"], ["product"]), helper.make_node("Tanh", ["product"], ["features"])]
    given, made = tensor("x", TensorProto.FLOAT, [None, dim]), tensor("features", TensorProto.FLOAT, [None, features])
    return model(nodes, [given], [made], [numpy_helper.from_array(W, "W")]), W


def words(vocabulary: list[str]) -> bytes:
    """Counts of words of a text, which is split at blanks."""
    nodes = [
        helper.make_node(
            "Tokenizer",
            ["text"],
            ["tokens"],
            domain="com.microsoft",
            mark=0,
            mincharnum=1,
            pad_value="#",
            separators=[" "],
        ),
        helper.make_node(
            "TfIdfVectorizer",
            ["tokens"],
            ["features"],
            mode="TF",
            min_gram_length=1,
            max_gram_length=1,
            max_skip_count=0,
            ngram_counts=[0],
            ngram_indexes=list(range(len(vocabulary))),
            pool_strings=vocabulary,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [tensor("text", TensorProto.STRING, [None])],
        [tensor("features", TensorProto.FLOAT, [None, len(vocabulary)])],
    )
    opsets = [*OPSETS, helper.make_opsetid("com.microsoft", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return content


def in_ort_format(content: bytes, folder: Path) -> bytes:
    """The file in the format of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "encoder.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return (folder / "encoder.ort").read_bytes()


def two_formats(ort: bytes, good: bytes) -> bytes:
    """A file that protobuf reads as one model, and onnxruntime by its first bytes as another."""
    start = 0x000D0808
    shift = start - int.from_bytes(ort[:4], "little")
    # fields of ModelProto: a version, unknown ones, and a description that covers the other format
    head = start.to_bytes(4, "little") + b"ORTM" + bytes(4)
    size = shift + len(ort) - len(head) - 6
    length = bytes((size >> 7 * i) & 0x7F | (0x80 if i < 4 else 0) for i in range(5))
    covered = head + b"\x32" + length
    return covered + bytes(shift + 8 - len(covered)) + ort[8:] + good


def hostile() -> dict[str, bytes]:
    """Files that must be refused, by what is wrong with them."""
    good, _ = projection(3, 2)
    x, y = tensor("x", TensorProto.FLOAT, [None, 3]), tensor("y", TensorProto.FLOAT, [None, 3])
    inner = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            tensor("i", TensorProto.INT64, []),
            tensor("go", TensorProto.BOOL, []),
            tensor("v", TensorProto.FLOAT, [None]),
        ],
        [tensor("again", TensorProto.BOOL, []), tensor("w", TensorProto.FLOAT, [None])],
    )
    loop = [helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=inner)]
    forever = [
        numpy_helper.from_array(np.array(2**62, np.int64), "n"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "branch", [], [y])
    external = numpy_helper.from_array(np.zeros((3, 3), np.float32), "W")
    external.ClearField("raw_data")
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="/etc/passwd")
    values = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    values.external_data.add(key="location", value="etc/passwd")
    values.external_data.add(key="length", value="12")
    sparse = SparseTensorProto(values=values, indices=numpy_helper.from_array(np.arange(3), "i"), dims=[3])
    secret = helper.make_node("Constant", [], ["c"])
    secret.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    add = helper.make_node("Add", ["x", "c"], ["y"])
    huge = [numpy_helper.from_array(np.array([10**6, 10**6], np.int64), "shape")]
    expand = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=1),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    lying = numpy_helper.from_array(np.zeros(4, np.float32), "W")
    lying.dims[0] = 2**40
    product = [helper.make_node("MatMul", ["x", "W"], ["y"])]
    return {
        "empty model": b"\n\0",
        "not protobuf": b"\xff" * 1000,
        "truncated": good[: len(good) // 2],
        "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "loop": model(loop, [x], [y], forever),
        "branch": model([helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [x], [y]),
        "external data": model(product, [x], [y], [external]),
        "external data in a sparse attribute": model([secret, add], [x], [y]),
        "huge constant": model(expand, [x], [y], huge),
        "lying constant": model(product, [x], [y], [lying]),
        "custom operator": model([helper.make_node("Evil", ["x"], ["y"], domain="evil")], [x], [y]),
        "random numbers": model([helper.make_node("RandomNormalLike", ["x"], ["y"])], [x], [y]),
        "no numbers": model(
            [helper.make_node("Identity", ["s"], ["t"])],
            [tensor("s", TensorProto.STRING, [None, 1])],
            [tensor("t", TensorProto.STRING, [None, 1])],
        ),
        "too many features": model(
            [helper.make_node("Expand", ["x", "shape"], ["y"])],
            [tensor("x", TensorProto.FLOAT, [None, 1])],
            [tensor("y", TensorProto.FLOAT, [None, 70_000])],
            [numpy_helper.from_array(np.array([1, 70_000], np.int64), "shape")],
        ),
    }
