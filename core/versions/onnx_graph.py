"""A version as an ONNX graph of standard operators: raw inputs in, the service's predictions out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from core.errors import Conflict
from core.kprior import Predictor, State
from core.kprior.model.architectures import Convolutional, Kernel, Linear
from core.kprior.model.categories import spellings_of
from core.kprior.model.encoders import TableEncoder
from core.kprior.model.spec import Column, dtype_of, gives_scores, values_of

OPSETS = {"": 17, "ai.onnx.ml": 3}
"""Old enough for runtimes that are a few years old."""
IR_VERSION = 8
ROWS = "rows"


class Graph:
    """A graph under construction. Each node has one output, named after its operator and number."""

    def __init__(self, dtype: type[np.floating[Any]]) -> None:
        self.dtype = dtype
        """Precision of the computation: double for linear models, as in the service."""
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


def to_onnx(state: State, name: str, version: int, threshold: float = 0.5) -> bytes:
    """Convert a version to the bytes of an ONNX file. Raises Conflict if a layer cannot be converted.

    A vector or an image is the input `x`; a table has one input (rows, 1) for each column: numbers (booleans 1 and 0,
    dates as days since 1970-01-01) with NaN for missing values, categories as text with "" for missing values. Outputs
    are named as in the responses of the service; a binary model predicts class 1 above the threshold.
    """
    predictor = state.predictor
    predictor.body.load_state_dict(predictor.unflatten(state.w), strict=False)
    graph = Graph(np.float64 if predictor.linear else np.float32)
    z = add_encoder(graph, predictor)
    f = add_body(graph, predictor.body, z)
    add_family(graph, predictor, f, threshold)
    onnx_graph = helper.make_graph(graph.nodes, "amend", graph.inputs, graph.outputs, graph.constants)
    opsets = [helper.make_opsetid(domain, number) for domain, number in OPSETS.items()]
    model = helper.make_model(onnx_graph, producer_name="amend", opset_imports=opsets, ir_version=IR_VERSION)
    helper.set_model_props(model, {"model": name, "version": str(version)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def add_encoder(graph: Graph, predictor: Predictor) -> str:
    """Encode raw inputs."""
    encoder, described = predictor.encoder, predictor.spec["input"]
    if isinstance(encoder, TableEncoder):
        assert described["kind"] == "table"
        return add_table(graph, encoder, described["columns"])
    if dtype_of(described) == "uint8":
        pixels = graph.cast(graph.input("x", TensorProto.UINT8, encoder.shape), np.float32)
        return graph.cast(graph.add("Div", pixels, graph.constant(np.array(255.0), np.float32)), graph.dtype)
    return graph.cast(graph.input("x", TensorProto.FLOAT, encoder.shape), graph.dtype)


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


def add_linear(graph: Graph, body: Linear, z: str) -> str:
    """W phi(z): `Linear.features`, without the constant 1, whose weights are a bias."""
    z = graph.add("Flatten", z, axis=1)
    chosen = z if body.chosen is None else graph.add("Gather", z, graph.constant(body.chosen), axis=1)
    parts, start = [chosen], 0
    for size in body.levels:
        parents, lasts = (graph.constant(index[start : start + size]) for index in (body.parents, body.lasts))
        built = graph.add("Gather", graph.concat(parts), parents, axis=1)
        parts.append(graph.add("Mul", built, graph.add("Gather", z, lasts, axis=1)))
        start += size
    weight = graph.constant(body.weight[:, :-1].T)
    return graph.add("Add", graph.add("MatMul", graph.concat(parts), weight), graph.constant(body.weight[:, -1]))


def add_kernel(graph: Graph, body: Kernel, z: str) -> str:
    """W phi(z): `Kernel.features`, without the constant 1, whose weights are a bias."""
    angle = graph.add("MatMul", graph.add("Flatten", z, axis=1), graph.constant(body.frequencies))
    scale = body.frequencies.shape[1] ** -0.5
    waves = graph.concat([graph.add("Cos", angle), graph.add("Sin", angle)])
    weight = graph.constant(body.weight[:, :-1].T * scale)
    return graph.add("Add", graph.add("MatMul", waves, weight), graph.constant(body.weight[:, -1]))


def add_body(graph: Graph, body: nn.Module, z: str) -> str:
    """The predictor's body; for networks, layer by layer."""
    if isinstance(body, Linear):
        return add_linear(graph, body, z)
    if isinstance(body, Kernel):
        return add_kernel(graph, body, z)
    if isinstance(body, nn.Sequential):
        for part in body:
            z = add_body(graph, part, z)
        return z
    if isinstance(body, Convolutional):
        return add_body(graph, body.head, add_body(graph, body.convolutions, z))
    bias: Tensor
    if isinstance(body, nn.Linear):
        bias = body.weight.new_zeros(body.out_features) if body.bias is None else body.bias
        return graph.add("Gemm", z, graph.constant(body.weight), graph.constant(bias), transB=1)
    if isinstance(body, nn.ReLU):
        return graph.add("Relu", z)
    if isinstance(body, nn.Flatten):
        return graph.add("Flatten", z, axis=1)
    if isinstance(body, nn.Dropout | nn.Identity):
        return z
    if isinstance(body, nn.Conv2d) and not isinstance(body.padding, str) and body.padding_mode == "zeros":
        bias = body.weight.new_zeros(body.out_channels) if body.bias is None else body.bias
        options: dict[str, Any] = {
            "strides": body.stride,
            "dilations": body.dilation,
            "pads": body.padding * 2,
            "group": body.groups,
        }
        return graph.add("Conv", z, graph.constant(body.weight), graph.constant(bias), **options)
    if isinstance(body, nn.MaxPool2d):
        size, stride, padding = (pair(value) for value in (body.kernel_size, body.stride, body.padding))
        options = {
            "ceil_mode": int(body.ceil_mode),
            "strides": stride,
            "pads": padding * 2,
            "dilations": pair(body.dilation),
        }
        return graph.add("MaxPool", z, kernel_shape=size, **options)
    message = f"The layer {type(body).__name__} cannot be converted to ONNX. Download the weights instead."
    raise Conflict("onnx_unsupported", message)


def pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


def add_family(graph: Graph, predictor: Predictor, f: str, threshold: float) -> None:
    """Convert outputs to means and to the predicted class."""
    target, outputs = predictor.spec["target"], predictor.family.outputs
    scores = gives_scores(predictor.spec)
    operator = {"binary": "Sigmoid", "count": "Exp", "classes": "Softmax", "number": "Identity"}[target["kind"]]
    operator = "Identity" if scores else operator
    axis: dict[str, Any] = {"axis": 1} if operator == "Softmax" else {}
    mean = graph.add(operator, f, **axis)
    name = "probabilities" if target["kind"] == "classes" else "score" if scores else "mean"
    graph.output(name, graph.cast(mean, np.float32), TensorProto.FLOAT, [outputs])
    if target["kind"] == "binary":
        above = graph.add("Greater", mean, graph.constant(np.array(0.0 if scores else threshold)))
        place = graph.add("Reshape", graph.cast(above, np.int64), graph.constant(np.array([-1])))
        graph.output("class", place, TensorProto.INT64)
    elif target["kind"] == "classes":
        values = values_of(target)
        whole = all(isinstance(value, int) for value in values)
        known = np.array(values, np.int64) if whole else np.array([str(value) for value in values], object)
        best = graph.add("ArgMax", mean, axis=1, keepdims=0)
        kind = TensorProto.INT64 if whole else TensorProto.STRING
        graph.output("class", graph.add("Gather", graph.constant(known), best), kind)
