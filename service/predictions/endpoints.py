"""The endpoint of predictions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from service.context import ContextDep
from service.http.auth import AuthenticatedRoute, Reader
from service.http.bodies import describe_body
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.models.endpoints import Name
from service.predictions.predict import predict

router = APIRouter(prefix="/v1/models/{name}/predictions", tags=["Predictions"], route_class=AuthenticatedRoute)

BODY = describe_body(
    "inputs",
    {"items": {"anyOf": [{"type": "array"}, {"type": "object"}]}, "description": "Each like the `x` of an example."},
    {"inputs": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]},
    others={
        "version": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 2**31 - 1,
            "description": "Missing: the champion.",
        },
        "uncertainty": {
            "type": "boolean",
            "default": False,
            "description": "Whether `std` and `interval` are told, too.",
        },
    },
)


class OutputAnswer(BaseModel):
    """One prediction: `mean` for yes/no, numbers and counts; `class` where there are classes."""

    mean: float | None = None
    score: float | None = Field(None, description="In place of `mean` where the loss is a squared hinge: above 0, 1.")
    class_: int | str | None = Field(None, alias="class")
    probabilities: dict[str, float] | None = None
    std: float | dict[str, float] | None = Field(None, description="If asked: the standard deviation, or each class's.")
    interval: list[float] | dict[str, list[float]] | None = Field(
        None, description="If asked: the ends of an interval that holds 95 %, or each class's."
    )


class PredictionsAnswer(BaseModel):
    """Predictions in the order of the inputs."""

    version: int
    outputs: list[OutputAnswer]


@router.post(
    "",
    response_model=PredictionsAnswer,
    response_model_exclude_none=True,
    responses=problem_responses(404, 409, 413),
    openapi_extra=BODY,
)
async def make_predictions(request: Request, name: Name, caller: Reader, context: ContextDep, write: Write) -> Response:
    """Predict with the champion, or with the version that is named."""
    made = await predict(await request.body(), name, caller, context, request.app.state.champions)
    if write.key is not None:
        return await run_in_threadpool(write, caller.credential, 200, lambda _session: made)
    return Response(made, media_type="application/json")
