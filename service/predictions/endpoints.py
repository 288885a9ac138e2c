"""The endpoint of predictions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import torch
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.errors import Invalid, TooLarge
from core.ledger.passes import shape_of
from service import metrics
from service.auth import Guarded, Reader
from service.context import Shared
from service.examples.formats import decoded
from service.inputs import Inputs
from service.models.endpoints import Name
from service.predictions.champions import Champions, Loaded
from service.problems import documented
from service.writing import Write

router = APIRouter(prefix="/v1/models/{name}/predictions", tags=["Predictions"], route_class=Guarded)

WHERE = "inputs"
SMALL = 50_000
"""Numbers that are computed at once; handing more to a thread costs less than making others wait."""

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "additionalProperties": False,
                    "properties": {
                        "inputs": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"anyOf": [{"type": "array"}, {"type": "object"}]},
                            "description": "Each like the `x` of an example.",
                        },
                        "version": {
                            "type": ["integer", "null"],
                            "minimum": 1,
                            "maximum": 2**31 - 1,
                            "description": "Missing: the champion.",
                        },
                    },
                },
                "example": {"inputs": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]},
            }
        },
    }
}


class OutputAnswer(BaseModel):
    """One prediction: `mean` for yes/no, numbers and counts; `class` where there are classes."""

    mean: float | None = None
    class_: int | str | None = Field(None, alias="class")
    probabilities: dict[str, float] | None = None


class PredictionsAnswer(BaseModel):
    """Predictions in the order of the inputs."""

    version: int
    outputs: list[OutputAnswer]


class Head(msgspec.Struct):
    """The part of a body that says which version reads the rest."""

    version: int | None = None


heads = msgspec.json.Decoder(Head)


@lru_cache(maxsize=256)
def decoder(inputs: Inputs) -> msgspec.json.Decoder[Any]:
    fields: list[Any] = [("inputs", list[inputs.json_type]), ("version", int | None, None)]  # type: ignore[name-defined]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields, forbid_unknown_fields=True))


def predict(loaded: Loaded, xs: list[Any]) -> bytes:
    x = loaded.inputs.from_json(xs, WHERE)
    shape = shape_of(loaded.served.spec["input"])
    means = loaded.served.means(torch.from_numpy(x).reshape(len(xs), *shape))
    metrics.PREDICTIONS.inc(len(xs))
    return msgspec.json.encode({"version": loaded.served.number, "outputs": loaded.targets.outputs(means)})


@router.post(
    "",
    response_model=PredictionsAnswer,
    response_model_exclude_none=True,
    responses=documented(404, 409, 413),
    openapi_extra=BODY,
)
async def make_predictions(request: Request, name: Name, caller: Reader, context: Shared, write: Write) -> Response:
    """Predict with the champion, or with the version that is named."""
    body = await request.body()
    champions: Champions = request.app.state.champions
    version = decoded(lambda: heads.decode(body)).version
    if version is not None and not 0 < version < 2**31:
        raise Invalid.at(("version",), "request_invalid", "must be the number of a version")
    loaded = champions.known(name, version, caller)
    if loaded is None:
        loaded = await run_in_threadpool(champions.find, name, version, caller)
    xs = decoded(lambda: decoder(loaded.inputs).decode(body)).inputs
    if not xs:
        raise Invalid.at((WHERE,), "batch_empty", "there is no input")
    if len(xs) > context.settings.max_batch:
        raise TooLarge("batch_too_large", f"{len(xs)} inputs; {context.settings.max_batch} are allowed in one request.")
    if write.key is not None:
        return await run_in_threadpool(write, caller.credential, 200, lambda _session: predict(loaded, xs))
    if len(xs) * loaded.inputs.width > SMALL:
        answer = await run_in_threadpool(predict, loaded, xs)
    else:
        answer = predict(loaded, xs)
    return Response(answer, media_type="application/json")
