"""The endpoint of predictions."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.http.auth import Reader
from service.http.body_schemas import describe_body
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write
from service.models.endpoints import Name
from service.predictions.predict import predict

router = APIRouter(prefix="/v1/models/{name}/predictions", tags=["Predictions"], route_class=AuthenticatedRoute)

BODY = describe_body(
    "inputs",
    {
        "items": {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "string"}]},
        "description": "Inputs, each in the format of the `x` of an example.",
    },
    {"inputs": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]},
    others={
        "version": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": 2**31 - 1,
            "description": "Version number. Default: the champion.",
        },
        "uncertainty": {
            "type": "boolean",
            "default": False,
            "description": "Include `std` and `interval` in the response.",
        },
        "explain": {
            "type": "boolean",
            "default": False,
            "description": "Include `contributions` in the response (linear models and boosted trees).",
        },
        "record": {
            "type": "boolean",
            "default": False,
            "description": "Store the inputs and predictions as examples without labels. Requires `ids` and the scope "
            "`ingest`.",
        },
        "ids": {
            "type": ["array", "null"],
            "items": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "With `record`: the id of each input, by which its label is sent.",
        },
        "subjects": {
            "type": ["array", "null"],
            "items": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
            "description": "With `record`: the person that each input is about. Only keyed hashes are stored.",
        },
    },
)


class PredictionResponse(BaseModel):
    """One prediction: `mean` for binary targets, numbers and counts; `class` for binary targets and classes; `labels`
    for targets of several labels."""

    mean: float | None = None
    score: float | None = Field(None, description="Instead of `mean` for the squared hinge loss: above 0 for class 1.")
    class_: int | str | None = Field(None, alias="class")
    labels: list[int | str] | None = Field(None, description="Labels whose probability is above the threshold.")
    probabilities: dict[str, float] | None = None
    std: float | dict[str, float] | None = Field(None, description="On request: standard deviation, or one per class.")
    interval: list[float] | dict[str, list[float]] | None = Field(
        None, description="On request: limits of the 95 % interval, or a pair of limits for each class."
    )
    contributions: dict[str, float] | None = Field(
        None,
        description="On request: what each input column (or word of a hashed text) contributes to the output before"
        " the link function, and `(intercept)`; together they add up to it. Of several classes: to the predicted class,"
        " less the mean of all.",
    )


class PredictionsResponse(BaseModel):
    """Predictions, in the order of the inputs."""

    version: int
    outputs: list[PredictionResponse]


@router.post(
    "",
    response_model=PredictionsResponse,
    response_model_exclude_none=True,
    responses=problem_responses(404, 409, 413),
    openapi_extra=BODY,
)
async def make_predictions(request: Request, name: Name, caller: Reader, write: Write) -> Response:
    """Predict with the champion or another version.

    With `record`, the inputs are also stored as examples without labels, together with the predictions.
    """
    response = await predict(await request.body(), name, caller, request.app.state.versions, write)
    return Response(response, media_type="application/json") if isinstance(response, bytes) else response
