"""Converts predictions to output tensors of the Open Inference Protocol."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import Invalid
from core.inference.predictions import to_predictions
from core.kprior.model.spec import PredictorSpec
from core.kprior.model.uncertainty import Uncertainty
from service.open_inference.input_tensors import OutputWanted, Parameters
from service.open_inference.metadata import NUMPY, metadata_of_output

UNCERTAINTY_OUTPUTS = ("std", "interval")
"""Outputs that are computed only on request."""


@dataclass(frozen=True)
class TensorOut:
    """An output tensor."""

    name: str
    datatype: Literal["FP64", "INT64", "BYTES"]
    width: int
    values: list[Any]
    """Row by row."""
    parameters: Parameters

    @property
    def shape(self) -> list[int]:
        return [len(self.values) // self.width, self.width]

    def to_bytes(self) -> bytes:
        if self.datatype == "BYTES":
            return b"".join(struct.pack("<I", len(text)) + text for text in (v.encode() for v in self.values))
        return np.array(self.values, NUMPY[self.datatype]).tobytes()


def wants_uncertainty(wanted: Sequence[OutputWanted]) -> bool:
    """Whether the request names an output for uncertainty."""
    return any(one.name in UNCERTAINTY_OUTPUTS for one in wanted)


def tensors_of(
    spec: PredictorSpec, mean: NDArray[Any], unsure: Uncertainty | None = None, threshold: float = 0.5
) -> list[TensorOut]:
    """Predicted means (n, K) as output tensors, with the same values as under `/v1`."""
    tensors, target = [], spec["target"]
    predictions = to_predictions(spec, mean, threshold=threshold)
    for name, datatype, (_, width) in metadata_of_output(spec):
        parameters: Parameters = {}
        if name == "probabilities":
            values: list[Any] = mean.ravel().tolist()
            assert target["kind"] == "classes" or target["kind"] == "labels"
            parameters["classes"] = json.dumps(target["values"], ensure_ascii=False)
        elif name == "labels":
            values = (mean > threshold).astype(np.int64).ravel().tolist()
        else:
            values = [prediction[name] for prediction in predictions]  # type: ignore[literal-required]
            values = list(map(str, values)) if datatype == "BYTES" else values
        tensors.append(TensorOut(name, datatype, width, values, parameters))  # type: ignore[arg-type]
    if unsure is not None:
        ends, size = np.stack([unsure.low, unsure.high], 2), mean.shape[1]
        tensors.append(TensorOut("std", "FP64", size, unsure.std.ravel().tolist(), {}))
        tensors.append(TensorOut("interval", "FP64", 2 * size, ends.ravel().tolist(), {}))
    return tensors


def select(
    tensors: list[TensorOut], wanted: Sequence[OutputWanted], known: Sequence[str]
) -> list[tuple[TensorOut, Parameters]]:
    """The requested tensors with their parameters; all tensors if none is named. `known`: names for the error."""
    if not wanted:
        return [(tensor, {}) for tensor in tensors]
    by_name = {tensor.name: tensor for tensor in tensors}
    for i, one in enumerate(wanted):
        if one.name not in by_name:
            message = f"unknown output; the outputs of this model are {', '.join(known)}"
            raise Invalid.at(("outputs", i, "name"), "tensor_invalid", message)
        if any(one.name == other.name for other in wanted[:i]):  # each would be written in full
            raise Invalid.at(("outputs", i, "name"), "tensor_invalid", "was requested more than once")
    return [(by_name[one.name], one.parameters) for one in wanted]
