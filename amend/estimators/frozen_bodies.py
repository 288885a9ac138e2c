"""Turns a torch Sequential whose body is frozen into an ONNX encoder and a linear head, which is adapted exactly."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.onnx_conversion import OPSET, quiet
from amend.estimators.pipeline_columns import is_a, require
from amend.estimators.torch_modules import implied_activations, to_numbers, walk

Spec = dict[str, Any]
CHECKED_ROWS = 200
"""Rows on which the features of the ONNX model are compared with those of the module."""
TOLERANCE = 1e-4


def split_frozen(module: Any, target: Mapping[str, Any]) -> tuple[list[Any], Any] | None:
    """The frozen layers of a Sequential and its head, a trainable Linear; None if no layer is frozen.

    Raises EstimatorUnsupported, which names the layer, if other layers are frozen.
    """
    parts = [(name, part) for name, part in walk(module) if not is_a(part, "Identity")]
    if parts and is_a(parts[-1][1], *implied_activations(target)):
        parts = parts[:-1]
    frozen = [(name, part) for name, part in parts if any(not p.requires_grad for p in part.parameters())]
    if not frozen:
        return None
    (last, head), body = parts[-1], parts[:-1]
    require(is_a(head, "Linear"), "The last layer of the module must be a Linear.")
    if frozen[-1][1] is head:
        raise EstimatorUnsupported(
            f"Layer {last} (a Linear), the last one, is frozen, so the model could not be adapted. Call "
            "requires_grad_(True) on it: the other frozen layers become its encoder."
        )
    free = [(name, part) for name, part in body if any(p.requires_grad for p in part.parameters())]
    if free:
        (name, part), (other, trained) = frozen[0], free[0]
        where = "in part" if part is trained else f"but layer {other} (a {type(trained).__name__}) is not"
        raise EstimatorUnsupported(
            f"Layer {name} (a {type(part).__name__}) is frozen, {where}. Freeze all layers before the last one, which "
            "then become an encoder with a certified head, or none (requires_grad_(True))."
        )
    return [part for _, part in body], head


def compose_frozen(
    body: list[Any], head: Any, inputs: Inputs, target: Mapping[str, Any], regularizer: Spec | None
) -> Spec:
    """The parts of an import: a linear model whose encoder is the body."""
    import numpy as np

    outputs = len(target["values"]) if target["kind"] == "classes" else 1
    found = head.out_features
    require(found == outputs, f"The module has {found} outputs, but the target needs {outputs}.")
    given: Spec = {"kind": "vector", "dim": inputs.shape[0]}
    if len(inputs.shape) == 3:
        given = {"kind": "image", "shape": list(inputs.shape)}
    elif inputs.names is not None:
        given = {"kind": "table", "columns": [{"name": name, "type": "number"} for name in inputs.names]}
    bias = np.zeros(found) if head.bias is None else to_numbers(head.bias.double())
    weights: list[float] = np.column_stack([to_numbers(head.weight.double()), bias]).ravel().tolist()
    return {
        "input": given,
        "target": target,
        "architecture": {"kind": "linear", "encoder": {"kind": "onnx"}},
        "regularizer": regularizer or {"kind": "l2", "delta": 1.0, "penalize_bias": False},
        "weights": weights,
        "units": None,
        "examples": inputs.only(inputs.names or []),
        "content": export_body(body, head.in_features, inputs),
    }


def export_body(body: list[Any], features: int, inputs: Inputs) -> bytes:
    """The layers as an ONNX file, compared with them on some rows."""
    missing = [module for module in ("onnx", "onnxruntime") if importlib.util.find_spec(module) is None]
    require(
        not missing,
        f"Frozen layers are converted to ONNX. Install {' and '.join(missing)} in the client's environment.",
    )
    import numpy as np
    import onnxruntime
    import torch

    x = first_rows(inputs)
    layers = torch.nn.Sequential(*deepcopy(body)).cpu().float().eval()  # statistics and dropout as in predictions
    file: Any = io.BytesIO()  # which the exporter takes, although its types do not say so
    axes = {"x": {0: "rows"}, "features": {0: "rows"}}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            truth = layers(torch.from_numpy(x)).numpy()
            options: Spec = {"input_names": ["x"], "output_names": ["features"], "dynamic_axes": axes, "dynamo": False}
            torch.onnx.export(layers, (torch.from_numpy(x[:2]),), file, opset_version=OPSET, **options)
        session = onnxruntime.InferenceSession(file.getvalue(), quiet(), providers=["CPUExecutionProvider"])
        made = session.run(None, {"x": x})[0]
    except Exception as error:  # layers, exporter and runtime raise errors of all kinds
        raise EstimatorUnsupported(
            f"The frozen layers cannot be converted to ONNX ({describe(error)}). Export them yourself and upload the "
            "file (docs/how-to/text-and-encoders.md), or write a plugin (docs/how-to/write-a-plugin.md)."
        ) from error
    require(
        truth.shape == (len(x), features),
        f"The frozen layers give the shape {truth.shape[1:]} for each row, but the head needs {features} features.",
    )
    near = made.shape == truth.shape and np.allclose(made, truth, rtol=TOLERANCE, atol=TOLERANCE)
    require(near, "The conversion of the frozen layers to ONNX gives other features. Upload an ONNX file of your own.")
    content: bytes = file.getvalue()
    return content


def first_rows(inputs: Inputs) -> Any:
    """Some inputs as an array of numbers."""
    import numpy as np

    if inputs.names is None:
        some = inputs.table["x"][:CHECKED_ROWS]
        return np.asarray(some.toarray() if hasattr(some, "toarray") else some, np.float32)
    columns = [inputs.table.column(name).slice(0, CHECKED_ROWS) for name in inputs.names]
    try:
        return np.stack([np.asarray(column.to_pandas(), np.float32) for column in columns], 1)
    except (TypeError, ValueError) as error:
        raise EstimatorUnsupported("A torch module needs columns of numbers. Encode the others first.") from error


def describe(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200].rstrip(".")
