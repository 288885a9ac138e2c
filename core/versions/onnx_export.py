"""A version as an ONNX graph of standard operators: raw inputs in, the service's predictions out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, numpy_helper
from torch import Tensor

from core.errors import Conflict
from core.kprior import Predictor, State
from core.kprior.model.categories import spellings_of
from core.kprior.model.input_encoders import Encoder, TableEncoder
from core.kprior.model.spec import Column, dtype_of, frozen_encoder, gives_scores, loss_of, shape_of, values_of
from core.kprior.model.tree_splits import LeafEncoder
from core.versions.onnx_layers import add_body
from core.versions.onnx_pipelines import add_steps
from core.versions.onnx_trees import add_trees

OPSETS = {"": 17, "ai.onnx.ml": 3}
"""Old enough for runtimes that are a few years old."""
IR_VERSION = 8
MIN_ENCODER_OPSET = 13
"""Since then, the operators that this module adds have the same meaning."""
ROWS = "rows"


class Graph:
    """A graph under construction. Each node has one output, named after its operator and number."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.dtype = dtype
        """Precision of the computation: double for linear models, as in the service."""
        self.opsets, self.ir_version = dict(OPSETS), IR_VERSION
        self.inputs: list[Any] = []
        self.taken: set[str] = set()
        """Names of inputs, which may be any names of columns."""
        self.outputs: list[Any] = []
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, [ROWS, *shape]))
        self.taken.add(name)
        return name

    def free_name(self, name: str) -> str:
        """The name, with underscores appended until no input has it."""
        while name in self.taken:
            name += "_"
        return name

    def output(self, name: str, tensor: str, kind: int, shape: Sequence[int] = ()) -> None:
        name = self.free_name(name)
        self.nodes.append(helper.make_node("Identity", [tensor], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, [ROWS, *shape]))

    def constant(self, values: NDArray[Any] | Tensor, dtype: Any = None) -> str:
        """Add a constant tensor, with numbers in the precision of the graph unless `dtype` is given."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        array = array.astype(dtype or self.dtype) if np.issubdtype(array.dtype, np.floating) else array
        name = self.free_name(f"constant_{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = self.free_name(f"{operator.lower()}_{len(self.nodes)}")
        self.nodes.append(helper.make_node(operator, list(inputs), [name], domain=domain, **attributes))
        return name

    def cast(self, tensor: str, dtype: Any) -> str:
        return self.add("Cast", tensor, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def concat(self, tensors: list[str]) -> str:
        return tensors[0] if len(tensors) == 1 else self.add("Concat", *tensors, axis=1)


def to_onnx(state: State, name: str, version: int, threshold: float = 0.5, encoder_file: bytes | None = None) -> bytes:
    """Convert a version to the bytes of an ONNX file. Raises Conflict if a layer cannot be converted.

    A vector or an image is the input `x`; a table has one input (rows, 1) for each column: numbers (booleans 1 and 0,
    dates as days since 1970-01-01) with NaN for missing values, categories as text with "" for missing values. Outputs
    are named as in the responses of the service; a binary model predicts class 1 above the threshold, and `labels` of
    several labels (rows, labels) are 1 above it. A model with an
    ONNX encoder, whose file is `encoder_file`, has the inputs of the encoder.
    """
    predictor = state.predictor
    predictor.body.load_state_dict(predictor.unflatten(state.w), strict=False)
    graph = Graph(np.float64 if predictor.linear else np.float32)
    if isinstance(predictor.encoder, LeafEncoder):
        f = add_trees(graph, predictor)
    else:
        z = add_encoder(graph, predictor) if encoder_file is None else add_frozen(graph, predictor, encoder_file)
        f = add_body(graph, predictor.body.eval(), z, torch.zeros(1, *predictor.encoder.shape, dtype=state.w.dtype))
    add_family(graph, predictor, f, threshold)
    onnx_graph = helper.make_graph(graph.nodes, "amend", graph.inputs, graph.outputs, graph.constants)
    opsets = [helper.make_opsetid(domain, number) for domain, number in graph.opsets.items()]
    model = helper.make_model(onnx_graph, producer_name="amend", opset_imports=opsets, ir_version=graph.ir_version)
    helper.set_model_props(model, {"model": name, "version": str(version)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def add_encoder(graph: Graph, predictor: Predictor) -> str:
    """Encode raw inputs."""
    encoder, described = predictor.encoder, predictor.spec["input"]
    frozen = frozen_encoder(predictor.spec)
    if frozen is not None:
        message = f"ONNX has no operators for the encoder {frozen['kind']!r}. Load the model with MLflow instead."
        raise Conflict("onnx_unsupported", message)
    if described["kind"] in ("vector", "table") and "transform" in described:
        raw = add_columns(graph, described["columns"]) if described["kind"] == "table" else add_vector(graph, encoder)
        return add_steps(graph, described["transform"]["steps"], raw, encoder.raw_shape[0])
    if isinstance(encoder, TableEncoder):
        assert described["kind"] == "table"
        return add_table(graph, encoder, described["columns"])
    if dtype_of(described) == "uint8":
        pixels = graph.cast(graph.input("x", TensorProto.UINT8, encoder.shape), np.float32)
        return graph.cast(graph.add("Div", pixels, graph.constant(np.array(255.0), np.float32)), graph.dtype)
    return graph.cast(graph.input("x", TensorProto.FLOAT, encoder.shape), graph.dtype)


def add_frozen(graph: Graph, predictor: Predictor, encoder_file: bytes) -> str:
    """The graph of a frozen encoder, with its own inputs; returns its features."""
    model = onnx.ModelProto.FromString(encoder_file)
    opsets = {"" if one.domain == "ai.onnx" else one.domain: one.version for one in model.opset_import}
    if opsets.get("", 0) < MIN_ENCODER_OPSET or len(model.graph.sparse_initializer):
        message = (
            f"The encoder uses version {opsets.get('', 0)} of the ONNX operators; an export needs at least "
            f"{MIN_ENCODER_OPSET}. Convert the encoder, and upload it again."
        )
        raise Conflict("onnx_unsupported", message)
    graph.opsets, graph.ir_version = {**graph.opsets, **opsets}, max(graph.ir_version, model.ir_version)
    inner = compose.add_prefix_graph(model.graph, "encoder/", rename_inputs=False)
    constants = {constant.name for constant in inner.initializer}
    given = [one for one in inner.input if one.name not in constants]
    graph.taken |= {one.name for one in given}
    kind, described = given[0].type.tensor_type.elem_type, predictor.spec["input"]
    if dtype_of(described) == "uint8" and kind != TensorProto.UINT8:  # the service scales pixels to 0-1
        name = given[0].name
        pixels = graph.cast(graph.input(graph.free_name("x"), TensorProto.UINT8, shape_of(described)), np.float32)
        scaled = graph.add("Div", pixels, graph.constant(np.array(255.0), np.float32))
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        graph.nodes.append(helper.make_node("Identity", [graph.cast(scaled, dtype)], [name]))
    else:
        graph.inputs += given
    graph.nodes += inner.node
    graph.constants += inner.initializer
    return graph.cast(graph.add("Flatten", graph.cast(inner.output[0].name, np.float32), axis=1), graph.dtype)


def add_vector(graph: Graph, encoder: Encoder) -> str:
    return graph.cast(graph.input("x", TensorProto.FLOAT, encoder.raw_shape), np.float64)


def add_columns(graph: Graph, columns: list[Column]) -> str:
    """Raw columns as one double each: numbers, and the codes of categories, with NaN for missing values."""
    parts = []
    for column in columns:
        if column["type"] != "category":
            parts.append(graph.cast(graph.input(column["name"], TensorProto.FLOAT, [1]), np.float64))
            continue
        text = graph.input(column["name"], TensorProto.STRING, [1])
        codes = spellings_of(column["values"]) | {"": float("nan")}
        found: dict[str, Any] = {"keys_strings": list(codes), "values_floats": list(codes.values())}
        code = graph.add("LabelEncoder", text, domain="ai.onnx.ml", default_float=-1.0, **found)
        parts.append(graph.cast(code, np.float64))
    return graph.concat(parts)


def add_table(graph: Graph, encoder: TableEncoder, columns: list[Column]) -> str:
    """Scaled numbers, flags of missing numbers, and indicators of categories: `TableEncoder.forward`."""
    names = [
        graph.input(column["name"], TensorProto.STRING if column["type"] == "category" else TensorProto.FLOAT, [1])
        for column in columns
    ]
    parts = []
    if encoder.numbers:
        number = graph.concat([names[i] for i in encoder.numbers])
        missing = graph.add("IsNaN", number)
        # always in double precision: the difference of a large number and its mean would lose digits
        mean, scale, nothing = (graph.constant(v, np.float64) for v in (encoder.mean, encoder.scale, np.zeros(())))
        scaled = graph.add("Div", graph.add("Sub", graph.cast(number, np.float64), mean), scale)
        parts.append(graph.cast(graph.add("Where", missing, nothing, scaled), graph.dtype))
        parts.append(graph.cast(missing, graph.dtype))
    for category in encoder.categories:
        column = columns[category.index]
        assert column["type"] == "category"
        places = {text: int(code) for text, code in spellings_of(column["values"]).items()} | {"": category.missing}
        codes: dict[str, Any] = {"keys_strings": list(places), "values_int64s": list(places.values())}
        text = names[category.index]
        code = graph.add("LabelEncoder", text, domain="ai.onnx.ml", default_int64=category.other, **codes)
        indicator = graph.add("Equal", code, graph.constant(np.arange(category.width)[None]))
        parts.append(graph.cast(indicator, graph.dtype))
    return graph.concat(parts)


def add_family(graph: Graph, predictor: Predictor, f: str, threshold: float) -> None:
    """Convert outputs to means and to the predicted class."""
    target, outputs = predictor.spec["target"], predictor.family.outputs
    scores = gives_scores(predictor.spec)
    operators = {"binary": "Sigmoid", "labels": "Sigmoid", "count": "Exp", "classes": "Softmax", "number": "Identity"}
    operator = operators[target["kind"]]
    operator = "Identity" if scores else operator
    axis: dict[str, Any] = {"axis": 1} if operator == "Softmax" else {}
    if target["kind"] == "binary" and loss_of(predictor.spec)["kind"] == "squared":
        operator = "Identity"
    mean = graph.add(operator, f, **axis)
    if target["kind"] == "number" and "transform" in target:
        mean = graph.add("Exp", mean)
        mean = mean if target["transform"] == "log" else graph.add("Sub", mean, graph.constant(np.array(1.0)))
    name = "probabilities" if target["kind"] in ("classes", "labels") else "score" if scores else "mean"
    graph.output(name, graph.cast(mean, np.float32), TensorProto.FLOAT, [outputs])
    if target["kind"] == "binary":
        above = graph.add("Greater", mean, graph.constant(np.array(0.0 if scores else threshold)))
        place = graph.add("Reshape", graph.cast(above, np.int64), graph.constant(np.array([-1])))
        graph.output("class", place, TensorProto.INT64)
    elif target["kind"] == "labels":
        above = graph.add("Greater", mean, graph.constant(np.array(threshold)))
        graph.output("labels", graph.cast(above, np.int64), TensorProto.INT64, [outputs])
    elif target["kind"] == "classes":
        values = values_of(target)
        whole = all(isinstance(value, int) for value in values)
        known = np.array(values, np.int64) if whole else np.array([str(value) for value in values], object)
        best = graph.add("ArgMax", mean, axis=1, keepdims=0)
        kind = TensorProto.INT64 if whole else TensorProto.STRING
        graph.output("class", graph.add("Gather", graph.constant(known), best), kind)
