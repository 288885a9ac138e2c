"""Endpoints of the Open Inference Protocol (v2), with the predictions that `/v1` gives.

Errors are those of all endpoints, with the field `error` that the protocol asks for (`service/http/problems.py`).
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse, Response

from core.errors import TooLarge
from core.ledger.specs import spec_at
from core.models import catalog
from core.versions import history
from core.versions.queries import find_version, numbers_in_use
from service import operations
from service.context import Context, ContextDep
from service.http.auth import AuthenticatedRoute, Caller, CheckedRoute, Reader
from service.http.json_bodies import MAX_JSON_BYTES
from service.http.problems import problem_responses
from service.models.endpoints import Name
from service.open_inference import input_tensors, metadata, output_tensors
from service.open_inference.schemas import (
    BODY,
    InferenceAnswer,
    LiveAnswer,
    ModelMetadata,
    ModelReadyAnswer,
    ReadyAnswer,
    ServerAnswer,
    TensorMetadata,
)
from service.predictions.predict import assess, check, predict_means
from service.predictions.version_cache import CachedVersion
from service.threads import run_for_body
from service.versions.downloads import Number

health = APIRouter(prefix="/v2/health", tags=["Open Inference Protocol"], route_class=CheckedRoute)
router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], route_class=AuthenticatedRoute)

HEAD_LENGTH = "Inference-Header-Content-Length"
"""Of the JSON that bytes follow."""
HeadBytes = Annotated[
    str | None, Header(alias=HEAD_LENGTH, description="The length of the JSON, where the bytes of tensors follow it.")
]


@health.head("/live", include_in_schema=False)
@health.get("/live", response_model=LiveAnswer)
async def server_live() -> LiveAnswer:
    """Whether this process is alive."""
    return LiveAnswer(live=True)


@health.head("/ready", include_in_schema=False)
@health.get("/ready", response_model=ReadyAnswer, responses={503: {"model": ReadyAnswer, "description": "Not ready"}})
async def server_ready(context: ContextDep) -> Response:
    """Whether all is there that predictions need: the database and the store. `/readyz` looks at more."""
    ready = all(
        [(await operations.check_in_time(part, context)).ok for part in (operations.database, operations.store)]
    )
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@router.get("", response_model=ServerAnswer, responses=problem_responses())
async def describe_server(caller: Reader) -> ServerAnswer:
    """The server and the extensions of the protocol that it knows."""
    version = importlib.metadata.version("amend")
    return ServerAnswer(name="amend", version=version, extensions=["binary_tensor_data"])


@router.get("/models/{name}", response_model=ModelMetadata, responses=problem_responses(404, 409))
def describe_model(request: Request, name: Name, caller: Reader, context: ContextDep) -> ModelMetadata:
    """What the model's champion takes and gives; what its first version will, if there is none."""
    return metadata_of(request, context, name, None, caller)


@router.get("/models/{name}/versions/{n}", response_model=ModelMetadata, responses=problem_responses(404, 409))
def describe_version(request: Request, name: Name, n: Number, caller: Reader, context: ContextDep) -> ModelMetadata:
    """What a version takes and gives."""
    return metadata_of(request, context, name, n, caller)


def metadata_of(request: Request, context: Context, name: str, n: int | None, caller: Caller) -> ModelMetadata:
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        position, number = model.head, n or model.champion
        if number is not None:
            version = find_version(session, model, number)
            history.require_in_use(version)
            position = version.position
        spec = spec_at(session, model.id, model.spec, position)
        versions = [str(number) for number in numbers_in_use(session, model.id)]
    given = (
        metadata.metadata_of_output(spec)
        if number is None
        else outputs_of(request.app.state.champions.find(name, number, caller))
    )

    def described(found: list[tuple[str, str, list[int]]]) -> list[TensorMetadata]:
        return [TensorMetadata(name=name, datatype=datatype, shape=shape) for name, datatype, shape in found]

    return ModelMetadata(
        name=name,
        versions=versions,
        platform="amend",
        inputs=described(metadata.metadata_of_input(spec["input"])),
        outputs=described(given),
    )


def outputs_of(loaded: CachedVersion) -> list[tuple[str, str, list[int]]]:
    """All outputs that a version has, those that are given only if they are named among them."""
    given, unsure = (of(loaded.model.spec) for of in (metadata.metadata_of_output, metadata.metadata_of_uncertainty))
    return given if loaded.posterior.why else [*given, *unsure]


@router.get("/models/{name}/ready", response_model=ModelReadyAnswer, responses=problem_responses(404, 409))
async def model_ready(request: Request, name: Name, caller: Reader) -> ModelReadyAnswer:
    """Whether the model has a champion that predicts."""
    await request.app.state.champions.get(name, None, caller)
    return ModelReadyAnswer(name=name)


@router.get("/models/{name}/versions/{n}/ready", response_model=ModelReadyAnswer, responses=problem_responses(404, 409))
async def version_ready(request: Request, name: Name, n: Number, caller: Reader) -> ModelReadyAnswer:
    """Whether a version predicts."""
    await request.app.state.champions.get(name, n, caller)
    return ModelReadyAnswer(name=name)


@router.post(
    "/models/{name}/infer", response_model=InferenceAnswer, responses=problem_responses(404, 409), openapi_extra=BODY
)
async def infer(
    request: Request, name: Name, caller: Reader, context: ContextDep, head_bytes: HeadBytes = None
) -> Response:
    """Predict with the champion."""
    return await infer_with(request, name, None, caller, context, head_bytes)


@router.post(
    "/models/{name}/versions/{n}/infer",
    response_model=InferenceAnswer,
    responses=problem_responses(404, 409),
    openapi_extra=BODY,
)
async def infer_with_version(
    request: Request, name: Name, n: Number, caller: Reader, context: ContextDep, head_bytes: HeadBytes = None
) -> Response:
    """Predict with a version."""
    return await infer_with(request, name, n, caller, context, head_bytes)


async def infer_with(
    request: Request, name: str, n: int | None, caller: Caller, context: Context, head_bytes: str | None
) -> Response:
    body = await request.body()
    loaded: CachedVersion = await request.app.state.champions.get(name, n, caller)
    max_batch = context.settings.max_batch
    return await run_for_body(body, lambda: answer(name, loaded, body, head_bytes, max_batch))


def answer(name: str, loaded: CachedVersion, body: bytes, head_bytes: str | None, max_batch: int) -> Response:
    """The predictions that a body asks for."""
    head, tail = input_tensors.split_body(body, head_bytes)
    if len(head) > MAX_JSON_BYTES:
        message = (
            f"The JSON may have {MAX_JSON_BYTES} bytes here; send tensors as bytes behind it, or several requests."
        )
        raise TooLarge("body_too_large", message)
    asked = input_tensors.decode_body(head)
    given = loaded.model.spec["input"]
    check(loaded, input_tensors.count_rows(asked.inputs, given), max_batch)
    x = input_tensors.read_rows(asked.inputs, tail, given, loaded.inputs)
    if output_tensors.wants_uncertainty(asked.outputs):
        made = output_tensors.tensors_of(loaded.model.spec, *assess(name, loaded, x, input_tensors.FIELD))
    else:
        made = output_tensors.tensors_of(loaded.model.spec, predict_means(name, loaded, x, input_tensors.FIELD))
    everywhere = asked.parameters.get("binary_data_output") is True
    outputs: list[dict[str, Any]] = []
    chunks = [b""]
    for tensor, wanted in output_tensors.select(made, asked.outputs, [output for output, _, _ in outputs_of(loaded)]):
        described = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
        parameters = dict(tensor.parameters)
        if wanted.get("binary_data", everywhere) is True:
            chunks.append(tensor.to_bytes())
            outputs.append({**described, "parameters": {**parameters, "binary_data_size": len(chunks[-1])}})
        else:
            outputs.append({**described, **({"parameters": parameters} if parameters else {}), "data": tensor.values})
    named = {} if asked.id is None else {"id": asked.id}
    version = str(loaded.model.number)
    chunks[0] = msgspec.json.encode({"model_name": name, "model_version": version, **named, "outputs": outputs})
    if len(chunks) == 1:
        return Response(chunks[0], media_type="application/json")
    headers = {HEAD_LENGTH: str(len(chunks[0]))}
    return Response(b"".join(chunks), headers=headers, media_type="application/octet-stream")
