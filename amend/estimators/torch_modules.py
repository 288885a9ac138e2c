"""Describes a torch Sequential as the architecture `sequential`, with its weights and buffers as a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import is_a, name_of, require

Spec = dict[str, Any]
ACTIVATIONS = {"ReLU": "relu", "SiLU": "silu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
SUPPORTED = (
    "Linear, Conv2d, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, BatchNorm1d, BatchNorm2d, LayerNorm, ReLU, GELU, SiLU, "
    "Tanh, Sigmoid, Flatten, Dropout and Identity"
)


@dataclass(frozen=True)
class Module:
    """A module as layers, and its tensors: the weights `w` and `body.NAME` for each buffer."""

    layers: list[Spec]
    tensors: dict[str, Any]


def is_plain(module: Any) -> bool:
    """Whether a Sequential consists of Linear and ReLU in turn, which the architectures `linear` and `mlp` cover."""
    parts = [part for _, part in walk(module) if not is_a(part, "Flatten", "Dropout", "Identity")]
    if parts and is_a(parts[-1], "Sigmoid", "Softmax", "LogSoftmax"):
        parts = parts[:-1]
    wanted = ["Linear", "ReLU"] * (len(parts) // 2) + ["Linear"]
    return len(parts) % 2 == 1 and all(is_a(part, name) for part, name in zip(parts, wanted, strict=True))


def walk(module: Any) -> Iterator[tuple[str, Any]]:
    """The layers of a Sequential and of those inside it, with their names in torch.

    A layer without weights may occur several times. Raises EstimatorUnsupported if another one does.
    """
    known: dict[int, str] = {}
    for name, part in list_layers(module):
        first = known.setdefault(id(part), name)
        require(
            first == name or not any(True for _ in part.parameters()),
            f"Layers {first} and {name} are the same {type(part).__name__}, but Amend cannot share weights. Use two "
            "layers (copy.deepcopy), or write a plugin (docs/how-to/write-a-plugin.md).",
        )
        yield name, part


def list_layers(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in module._modules.items():  # named_children() leaves out what occurs again
        if is_a(part, "Sequential"):
            yield from list_layers(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def implied_activations(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of final layers that a target implies, so that the model does not need them."""
    return {"binary": ("Sigmoid",), "classes": ("Softmax", "LogSoftmax")}.get(target["kind"], ())


def describe_module(module: Any, target: Mapping[str, Any]) -> Module:
    """The layers of a Sequential; raises EstimatorUnsupported, which names the layer, if one cannot be imported."""
    import numpy as np

    parts = [(name, part) for name, part in walk(module) if not is_a(part, "Identity")]
    if parts and is_a(parts[-1][1], *implied_activations(target)):
        parts = parts[:-1]
    require(bool(parts) and is_a(parts[-1][1], "Linear"), "The last layer of the module must be a Linear.")
    layers: list[Spec] = []
    weights: list[Any] = []
    buffers: dict[str, Any] = {}
    for name, part in parts:
        layers.append(describe_layer(name, part))
        weights += [to_numbers(p).astype(np.float32).ravel() for _, p in part.named_parameters()]
        buffers |= {f"body.{len(layers) - 1}.{own}": to_numbers(b) for own, b in part.named_buffers()}
    outputs = len(target["values"]) if target["kind"] == "classes" else 1
    found = layers[-1]["outputs"]
    require(found == outputs, f"The module has {found} outputs, but the target needs {outputs}.")
    return Module(layers, {"w": np.concatenate(weights), **buffers})


def require_fit(module: Any, inputs: Inputs) -> None:
    """Refuse rows that the module cannot read, with torch's reason."""
    import torch

    layers = deepcopy(module).cpu().float().eval()
    try:
        with torch.no_grad():
            layers(torch.zeros(2, *inputs.shape))
    except (RuntimeError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        shape = list(inputs.shape)
        raise EstimatorUnsupported(f"The module cannot read rows of the shape {shape}: {reason[:200]}") from error


def describe_layer(name: str, part: Any) -> Spec:
    """One layer as data."""
    what = f"Cannot import layer {name}, {name_of(part, 'a')}"
    if is_a(part, "Linear"):
        return {"kind": "linear", "outputs": part.out_features, "bias": part.bias is not None}
    if is_a(part, "Conv2d"):
        plain = part.padding_mode == "zeros" and not isinstance(part.padding, str)
        require(plain, f"{what} with padding={part.padding!r} and mode {part.padding_mode!r}. Use zeros and numbers.")
        sizes = {"stride": part.stride, "padding": part.padding, "dilation": part.dilation}
        return {
            **{"kind": "conv2d", "channels": part.out_channels, "kernel": list(part.kernel_size)},
            **{option: list(value) for option, value in sizes.items()},
            **{"groups": part.groups, "bias": part.bias is not None},
        }
    if is_a(part, "MaxPool2d", "AvgPool2d"):
        plain = not part.ceil_mode and getattr(part, "dilation", 1) in (1, (1, 1))
        require(plain, f"{what} with ceil_mode or dilation. Leave them at their defaults.")
        kernel, stride, padding = (pair(value) for value in (part.kernel_size, part.stride, part.padding))
        pool = "max_pool2d" if is_a(part, "MaxPool2d") else "avg_pool2d"
        return {"kind": pool, "kernel": kernel, "stride": stride, "padding": padding}
    if is_a(part, "AdaptiveAvgPool2d"):
        return {"kind": "adaptive_avg_pool2d", "size": pair(part.output_size)}
    if is_a(part, "BatchNorm1d", "BatchNorm2d"):
        require(part.affine and part.track_running_stats, f"{what} without weights or statistics. Use the defaults.")
        return {"kind": "batch_norm", "eps": part.eps}
    if is_a(part, "LayerNorm"):
        plain = part.elementwise_affine and part.bias is not None
        require(plain, f"{what} without weights. Use elementwise_affine=True.")
        return {"kind": "layer_norm", "dimensions": len(part.normalized_shape), "eps": part.eps}
    if is_a(part, "Dropout"):
        return {"kind": "dropout", "p": part.p}
    if is_a(part, "GELU"):
        return {"kind": "gelu" if part.approximate == "none" else "gelu_tanh"}
    if is_a(part, "Flatten"):
        require(part.start_dim == 1 and part.end_dim == -1, f"{what} of some dimensions. Use Flatten().")
        return {"kind": "flatten"}
    for known, ours in ACTIVATIONS.items():
        if is_a(part, known):
            return {"kind": ours}
    raise EstimatorUnsupported(
        f"{what}. Supported layers: {SUPPORTED}. Or write a plugin (docs/how-to/write-a-plugin.md)."
    )


def pair(value: Any) -> list[int]:
    return [int(value), int(value)] if isinstance(value, int) else [int(v) for v in value]


def to_numbers(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def to_safetensors(tensors: Mapping[str, Any]) -> bytes:
    """NumPy arrays as a safetensors file: the length of a JSON header, the header, and the numbers."""
    import numpy as np

    names = {"float32": "F32", "float64": "F64", "int64": "I64"}
    header, parts, start = {}, [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        where = [start, start + len(data)]
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape), "data_offsets": where}
        parts.append(data)
        start += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
