"""Predictions -> the tensors of an answer of the Open Inference Protocol."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import Invalid
from core.inference.predictions import to_predictions
from core.kprior.model.posterior import Uncertainty
from core.kprior.model.spec import PredictorSpec
from service.open_inference.input_tensors import OutputWanted, Parameters
from service.open_inference.metadata import NUMPY, metadata_of_output

UNCERTAINTY_OUTPUTS = ("std", "interval")
"""Outputs that say how certain the others are."""


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
    """Whether an output is named that says how sure the others are: those come only if they are."""
    return any(one.name in UNCERTAINTY_OUTPUTS for one in wanted)


def tensors_of(spec: PredictorSpec, mean: NDArray[Any], unsure: Uncertainty | None = None) -> list[TensorOut]:
    """Predicted means (n, K) as output tensors, with the values that all our answers have."""
    made, target = [], spec["target"]
    predictions = to_predictions(spec, mean)
    for name, datatype, (_, width) in metadata_of_output(spec):
        parameters: Parameters = {}
        if name == "probabilities":
            values: list[Any] = mean.ravel().tolist()
            assert target["kind"] == "classes"
            parameters["classes"] = json.dumps(target["values"], ensure_ascii=False)
        else:
            values = [prediction[name] for prediction in predictions]  # type: ignore[literal-required]
            values = list(map(str, values)) if datatype == "BYTES" else values
        made.append(TensorOut(name, datatype, width, values, parameters))  # type: ignore[arg-type]
    if unsure is not None:
        ends, size = np.stack([unsure.low, unsure.high], 2), mean.shape[1]
        made.append(TensorOut("std", "FP64", size, unsure.std.ravel().tolist(), {}))
        made.append(TensorOut("interval", "FP64", 2 * size, ends.ravel().tolist(), {}))
    return made


def select(
    tensors: list[TensorOut], wanted: Sequence[OutputWanted], known: Sequence[str]
) -> list[tuple[TensorOut, Parameters]]:
    """The tensors that are asked for, with what is asked of each; all, if none is named. `known`: what could be."""
    if not wanted:
        return [(tensor, {}) for tensor in tensors]
    by_name = {tensor.name: tensor for tensor in tensors}
    for i, one in enumerate(wanted):
        if one.name not in by_name:
            message = f"no output of this model; it has {', '.join(known)}"
            raise Invalid.at(("outputs", i, "name"), "tensor_invalid", message)
        if any(one.name == other.name for other in wanted[:i]):  # each would be written in full
            raise Invalid.at(("outputs", i, "name"), "tensor_invalid", "asked for twice")
    return [(by_name[one.name], one.parameters) for one in wanted]
