"""Requests and responses of the Open Inference Protocol, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.http.body_schemas import Schema

Parameters = dict[str, str | float | bool]
PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATATYPES = ["BOOL", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), "FP16", "FP32", "FP64"]


class ServerResponse(BaseModel):
    """Name and version of the server."""

    name: str
    version: str
    extensions: list[str]


class LiveResponse(BaseModel):
    """Whether the process is alive."""

    live: bool


class ReadyResponse(BaseModel):
    """Whether the server can make predictions."""

    ready: bool


class ModelReadyResponse(BaseModel):
    """Whether the model can make predictions."""

    name: str
    ready: Literal[True] = True


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor; -1 stands for the number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str] = Field(description="Available versions, the newest first.")
    platform: str = Field(description="Always `amend`.")
    inputs: list[TensorMetadata] = Field(
        description="One tensor for each column of a table; otherwise a single tensor."
    )
    outputs: list[TensorMetadata] = Field(
        description="`std` and `interval` are listed if the version can estimate them, and returned on request."
    )


class OutputTensor(TensorMetadata):
    """An output tensor."""

    parameters: Parameters | None = Field(
        None, description="`classes`: the classes of the probabilities, as a JSON list; `binary_data_size`."
    )
    data: list[Any] | None = Field(None, description="Values in row-major order; missing if binary data was requested.")


class InferenceResponse(BaseModel):
    """Predictions: `mean` for binary targets, numbers and counts; `class` and `probabilities` for classes; `labels` (1
    for each predicted label) and `probabilities` for targets of several labels.

    On request also `std` and `interval`, with the two ends for each number of the prediction.
    """

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


BODY: Schema = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": ["string", "null"], "description": "Id that the response repeats."},
                        "parameters": PARAMETERS,
                        "inputs": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name", "shape", "datatype"],
                                "properties": {
                                    "name": {
                                        "type": "string",
                                        "description": "Name of a column; for other inputs, any name.",
                                    },
                                    "shape": {"type": "array", "items": {"type": "integer"}},
                                    "datatype": {"enum": [*DATATYPES, "BYTES"]},
                                    "parameters": PARAMETERS,
                                    "data": {
                                        "type": "array",
                                        "description": "Flat in row-major order, or nested like the shape.",
                                    },
                                },
                            },
                        },
                        "outputs": {
                            "type": "array",
                            "description": "Outputs to return; all if missing.",
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}, "parameters": PARAMETERS},
                            },
                        },
                    },
                },
                "example": {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.2, 0.3]}]},
            }
        },
    }
}
