"""The layers of a linear model or a network as nodes of an ONNX graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from core.errors import Conflict
from core.kprior.model.architectures import Convolutional, Kernel, Linear

if TYPE_CHECKING:
    from core.versions.onnx_export import Graph

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid"}


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


@torch.no_grad()
def add_body(graph: Graph, body: nn.Module, z: str, sample: Tensor) -> str:
    """The predictor's body; for networks, layer by layer. `sample` is an input of the body, of which only the shape
    matters."""
    if isinstance(body, Linear):
        return add_linear(graph, body, z)
    if isinstance(body, Kernel):
        return add_kernel(graph, body, z)
    if isinstance(body, nn.Sequential):
        for part in body:
            z, sample = add_body(graph, part, z, sample), part(sample)
        return z
    if isinstance(body, Convolutional):
        z = add_body(graph, body.convolutions, z, sample)
        return add_body(graph, body.head, z, body.convolutions(sample))
    bias: Tensor
    if isinstance(body, nn.Linear):
        bias = body.weight.new_zeros(body.out_features) if body.bias is None else body.bias
        return graph.add("Gemm", z, graph.constant(body.weight), graph.constant(bias), transB=1)
    simple = next((name for kind, name in ACTIVATIONS.items() if isinstance(body, kind)), None)
    if simple is not None:
        return graph.add(simple, z)
    if isinstance(body, nn.SiLU):
        return graph.add("Mul", z, graph.add("Sigmoid", z))
    if isinstance(body, nn.GELU | nn.LayerNorm | nn.modules.batchnorm._BatchNorm | nn.AvgPool2d):
        return add_normalisation(graph, body, z)
    if isinstance(body, nn.AdaptiveAvgPool2d):
        return add_adaptive_pool(graph, body, z, sample)
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


def add_normalisation(graph: Graph, body: nn.Module, z: str) -> str:
    """GELU, mean pooling and normalisations, whose statistics are constants of the version."""
    if isinstance(body, nn.GELU):
        half, one = graph.constant(np.array(0.5)), graph.constant(np.array(1.0))
        if body.approximate == "none":
            inner = graph.add("Erf", graph.add("Mul", z, graph.constant(np.array(0.5**0.5))))
        else:
            cube = graph.add("Mul", graph.add("Mul", z, graph.add("Mul", z, z)), graph.constant(np.array(0.044715)))
            sum_ = graph.add("Add", z, cube)
            inner = graph.add("Tanh", graph.add("Mul", sum_, graph.constant(np.array((2 / np.pi) ** 0.5))))
        return graph.add("Mul", graph.add("Mul", z, half), graph.add("Add", inner, one))
    if isinstance(body, nn.AvgPool2d):
        size, stride, padding = (pair(value) for value in (body.kernel_size, body.stride, body.padding))
        counts: dict[str, Any] = {"count_include_pad": int(body.count_include_pad), "pads": padding * 2}
        return graph.add("AveragePool", z, kernel_shape=size, strides=stride, **counts)
    assert isinstance(body, nn.LayerNorm | nn.modules.batchnorm._BatchNorm)
    scale, shift = graph.constant(body.weight), graph.constant(body.bias)
    if isinstance(body, nn.LayerNorm):
        axis = -len(body.normalized_shape)
        return graph.add("LayerNormalization", z, scale, shift, axis=axis, epsilon=body.eps)
    assert body.running_mean is not None
    assert body.running_var is not None
    statistics = graph.constant(body.running_mean), graph.constant(body.running_var)
    return graph.add("BatchNormalization", z, scale, shift, *statistics, epsilon=body.eps)


def add_adaptive_pool(graph: Graph, body: nn.AdaptiveAvgPool2d, z: str, sample: Tensor) -> str:
    """Means over windows that depend on the size of the image: A z B with constant matrices of weights."""
    sizes = zip(sample.shape[-2:], body(sample).shape[-2:], strict=True)
    down, across = (functional.adaptive_avg_pool1d(torch.eye(size)[None], made)[0] for size, made in sizes)
    return graph.add("MatMul", graph.constant(down.T), graph.add("MatMul", z, graph.constant(across)))


def pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value
