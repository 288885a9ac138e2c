"""What the Open Inference Protocol's requests and answers look like, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.http.bodies import Schema

Parameters = dict[str, str | float | bool]
PARAMETERS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATATYPES = ["BOOL", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), "FP16", "FP32", "FP64"]


class ServerAnswer(BaseModel):
    """This server."""

    name: str
    version: str
    extensions: list[str]


class LiveAnswer(BaseModel):
    """Whether the process answers."""

    live: bool


class ReadyAnswer(BaseModel):
    """Whether predictions can be asked for."""

    ready: bool


class ModelReadyAnswer(BaseModel):
    """Whether a model predicts."""

    name: str
    ready: Literal[True] = True


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor; -1 is the number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What a model takes and gives."""

    name: str
    versions: list[str] = Field(description="That can be asked for, the newest first.")
    platform: str = Field(description="Always `amend`.")
    inputs: list[TensorMetadata] = Field(description="A tensor for each column of a table; else one for all rows.")
    outputs: list[TensorMetadata] = Field(
        description="`std` and `interval` are there where the version can say them, and are given if they are named."
    )


class OutputTensor(TensorMetadata):
    """One output."""

    parameters: Parameters | None = Field(
        None, description="`classes`: the names of the probabilities, as a list in JSON; `binary_data_size`."
    )
    data: list[Any] | None = Field(None, description="Row by row; not there where bytes were asked for.")


class InferenceAnswer(BaseModel):
    """Predictions: `mean` for yes/no, numbers and counts; `class` and `probabilities` where there are classes.

    If they are named among the outputs: `std`, and `interval`, its two ends for each number of the prediction.
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
                        "id": {"type": ["string", "null"], "description": "Comes back with the answer."},
                        "parameters": PARAMETERS,
                        "inputs": {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name", "shape", "datatype"],
                                "properties": {
                                    "name": {"type": "string", "description": "Of a column; else any."},
                                    "shape": {"type": "array", "items": {"type": "integer"}},
                                    "datatype": {"enum": [*DATATYPES, "BYTES"]},
                                    "parameters": PARAMETERS,
                                    "data": {"type": "array", "description": "Flat, or nested as the shape is."},
                                },
                            },
                        },
                        "outputs": {
                            "type": "array",
                            "description": "Missing: all.",
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}, "parameters": PARAMETERS},
                            },
                        },
                    },
                },
                "example": {
                    "inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.2, 0.3]}],
                },
            }
        },
    }
}
