"""A network whose layers are data: the architecture `sequential`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .spec_types import Layer

ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "flatten": nn.Flatten(),
}


def sequential(shape: tuple[int, ...], outputs: int, layers: Sequence[Layer]) -> nn.Module:
    """Build the layers for inputs of a shape.

    Raises
    ------
    ValueError
        If a layer does not fit its input, or the last one does not have `outputs` outputs.

    Examples
    --------
    >>> layers = [{"kind": "linear", "outputs": 4}, {"kind": "batch_norm"}, {"kind": "linear", "outputs": 1}]
    >>> sum(p.numel() for p in sequential((3,), 1, layers).parameters())
    29
    """
    made: list[nn.Module] = []
    z = torch.zeros(1, *shape)
    for i, layer in enumerate(layers):
        try:
            made.append(module_of(layer, z).eval())
            z = made[-1](z)
        except (RuntimeError, ValueError, IndexError) as error:
            given = tuple(z.shape[1:])
            raise ValueError(f"Layer {i} ({layer['kind']}) does not fit its input of shape {given}.") from error
    if tuple(z.shape[1:]) != (outputs,):
        raise ValueError(f"The last layer has the shape {tuple(z.shape[1:])}, but the target needs {outputs} outputs.")
    return nn.Sequential(*made)


def module_of(layer: Layer, z: Tensor) -> nn.Module:
    """The module of a layer whose input has the shape of z."""
    if layer["kind"] == "linear":
        return nn.Linear(z.shape[-1], layer["outputs"], bias=layer.get("bias", True))
    if layer["kind"] == "conv2d":
        window = pair(layer["kernel"]), pair(layer.get("stride", [1, 1])), pair(layer.get("padding", [0, 0]))
        dilation, groups, bias = pair(layer.get("dilation", [1, 1])), layer.get("groups", 1), layer.get("bias", True)
        return nn.Conv2d(z.shape[1], layer["channels"], *window, dilation, groups, bias)
    if layer["kind"] == "max_pool2d":
        return nn.MaxPool2d(pair(layer["kernel"]), pair(layer["stride"]), pair(layer.get("padding", [0, 0])))
    if layer["kind"] == "avg_pool2d":
        return nn.AvgPool2d(pair(layer["kernel"]), pair(layer["stride"]), pair(layer.get("padding", [0, 0])))
    if layer["kind"] == "adaptive_avg_pool2d":
        return nn.AdaptiveAvgPool2d(pair(layer["size"]))
    if layer["kind"] == "batch_norm":
        normalise = nn.BatchNorm2d if z.dim() == 4 else nn.BatchNorm1d
        return normalise(z.shape[1], eps=layer.get("eps", 1e-5))
    if layer["kind"] == "layer_norm":
        return nn.LayerNorm(z.shape[-layer.get("dimensions", 1) :], eps=layer.get("eps", 1e-5))
    if layer["kind"] == "dropout":
        return nn.Dropout(layer.get("p", 0.5))
    return ACTIVATIONS[layer["kind"]]


def pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[1])
