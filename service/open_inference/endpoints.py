"""Endpoints of the Open Inference Protocol (v2). Their predictions are the same as under `/v1`.

Errors have the additional field `error` that the protocol requires (`service/http/problems.py`).
"""

import importlib.metadata
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Request
from starlette.responses import JSONResponse, Response

from core.errors import TooLarge
from core.ledger.spec_history import spec_at
from core.models import catalog
from core.versions.queries import find_version, numbers_in_use, require_in_use
from service.context import Context, ContextDep
from service.health import check_component, check_database, check_store
from service.http.auth import Caller, Reader
from service.http.body_threads import run_for_body
from service.http.json_bodies import MAX_JSON_BYTES
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute, CheckedRoute
from service.models.endpoints import Name
from service.open_inference import input_tensors, metadata, output_tensors
from service.open_inference.schemas import (
    BODY,
    InferenceResponse,
    LiveResponse,
    ModelMetadata,
    ModelReadyResponse,
    ReadyResponse,
    ServerResponse,
    TensorMetadata,
)
from service.predictions.predict import assess, check, predict_means
from service.predictions.version_cache import CachedVersion
from service.versions.downloads import Number

health = APIRouter(prefix="/v2/health", tags=["Open Inference Protocol"], route_class=CheckedRoute)
router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], route_class=AuthenticatedRoute)

HEAD_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON that precedes binary tensor data."""
HeadBytes = Annotated[
    str | None, Header(alias=HEAD_LENGTH, description="Length of the JSON if binary tensor data follow it.")
]


@health.head("/live", include_in_schema=False)
@health.get("/live", response_model=LiveResponse)
async def server_live() -> LiveResponse:
    """Check that the process is alive."""
    return LiveResponse(live=True)


@health.head("/ready", include_in_schema=False)
@health.get(
    "/ready", response_model=ReadyResponse, responses={503: {"model": ReadyResponse, "description": "Not ready"}}
)
async def server_ready(context: ContextDep) -> Response:
    """Check the components that predictions need: the database and the store. `/readyz` checks all components."""
    ready = all([(await check_component(check, context)).ok for check in (check_database, check_store)])
    return JSONResponse({"ready": ready}, 200 if ready else 503)


@router.get("", response_model=ServerResponse, responses=problem_responses())
async def describe_server(caller: Reader) -> ServerResponse:
    """Get the name and version of the server, and the protocol extensions that it supports."""
    version = importlib.metadata.version("amend")
    return ServerResponse(name="amend", version=version, extensions=["binary_tensor_data"])


@router.get("/models/{name}", response_model=ModelMetadata, responses=problem_responses(404, 409))
def describe_model(request: Request, name: Name, caller: Reader, context: ContextDep) -> ModelMetadata:
    """Get the input and output tensors of the champion, or of the future first version if there is no champion."""
    return metadata_of(request, context, name, None, caller)


@router.get("/models/{name}/versions/{n}", response_model=ModelMetadata, responses=problem_responses(404, 409))
def describe_version(request: Request, name: Name, n: Number, caller: Reader, context: ContextDep) -> ModelMetadata:
    """Get the input and output tensors of a version."""
    return metadata_of(request, context, name, n, caller)


def metadata_of(request: Request, context: Context, name: str, n: int | None, caller: Caller) -> ModelMetadata:
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        position, number = model.head, n or model.champion
        if number is not None:
            version = find_version(session, model, number)
            require_in_use(version)
            position = version.position
        spec = spec_at(session, model.id, model.spec, position)
        versions = [str(number) for number in numbers_in_use(session, model.id)]
    outputs = (
        metadata.metadata_of_output(spec)
        if number is None
        else outputs_of(request.app.state.versions.find(name, number, caller))
    )

    def describe(tensors: list[tuple[str, str, list[int]]]) -> list[TensorMetadata]:
        return [TensorMetadata(name=name, datatype=datatype, shape=shape) for name, datatype, shape in tensors]

    return ModelMetadata(
        name=name,
        versions=versions,
        platform="amend",
        inputs=describe(metadata.metadata_of_input(spec["input"])),
        outputs=describe(outputs),
    )


def outputs_of(loaded: CachedVersion) -> list[tuple[str, str, list[int]]]:
    """All outputs of a version, including those that are returned only on request."""
    spec = loaded.model.spec
    outputs, uncertainty = metadata.metadata_of_output(spec), metadata.metadata_of_uncertainty(spec)
    return outputs if loaded.posterior.why else [*outputs, *uncertainty]


@router.get("/models/{name}/ready", response_model=ModelReadyResponse, responses=problem_responses(404, 409))
async def model_ready(request: Request, name: Name, caller: Reader) -> ModelReadyResponse:
    """Check that the model has a champion that can predict."""
    await request.app.state.versions.get(name, None, caller)
    return ModelReadyResponse(name=name)


@router.get(
    "/models/{name}/versions/{n}/ready", response_model=ModelReadyResponse, responses=problem_responses(404, 409)
)
async def version_ready(request: Request, name: Name, n: Number, caller: Reader) -> ModelReadyResponse:
    """Check that a version can predict."""
    await request.app.state.versions.get(name, n, caller)
    return ModelReadyResponse(name=name)


@router.post(
    "/models/{name}/infer", response_model=InferenceResponse, responses=problem_responses(404, 409), openapi_extra=BODY
)
async def infer(
    request: Request, name: Name, caller: Reader, context: ContextDep, head_bytes: HeadBytes = None
) -> Response:
    """Predict with the champion."""
    return await infer_with(request, name, None, caller, context, head_bytes)


@router.post(
    "/models/{name}/versions/{n}/infer",
    response_model=InferenceResponse,
    responses=problem_responses(404, 409),
    openapi_extra=BODY,
)
async def infer_with_version(
    request: Request, name: Name, n: Number, caller: Reader, context: ContextDep, head_bytes: HeadBytes = None
) -> Response:
    """Predict with a given version."""
    return await infer_with(request, name, n, caller, context, head_bytes)


async def infer_with(
    request: Request, name: str, n: int | None, caller: Caller, context: Context, head_bytes: str | None
) -> Response:
    body = await request.body()
    loaded: CachedVersion = await request.app.state.versions.get(name, n, caller)
    max_batch = context.settings.max_batch
    return await run_for_body(body, lambda: respond(name, loaded, body, head_bytes, max_batch))


def respond(name: str, loaded: CachedVersion, body: bytes, head_bytes: str | None, max_batch: int) -> Response:
    """The response to a body."""
    head, tail = input_tensors.split_body(body, head_bytes)
    if len(head) > MAX_JSON_BYTES:
        message = f"The JSON exceeds the limit of {MAX_JSON_BYTES} bytes. Send binary tensor data, or several requests."
        raise TooLarge("body_too_large", message)
    request = input_tensors.decode_body(head)
    input_spec = loaded.model.spec["input"]
    check(loaded, input_tensors.count_rows(request.inputs, input_spec), max_batch)
    x = input_tensors.read_rows(request.inputs, tail, input_spec, loaded.inputs)
    unsure = None
    if output_tensors.wants_uncertainty(request.outputs):
        mean, unsure = assess(name, loaded, x, input_tensors.FIELD)
    else:
        mean = predict_means(name, loaded, x, input_tensors.FIELD)
    tensors = output_tensors.tensors_of(loaded.model.spec, mean, unsure, loaded.model.threshold)
    all_binary = request.parameters.get("binary_data_output") is True
    outputs: list[dict[str, Any]] = []
    chunks = [b""]
    for tensor, wanted in output_tensors.select(
        tensors, request.outputs, [output for output, _, _ in outputs_of(loaded)]
    ):
        described = {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}
        parameters = dict(tensor.parameters)
        if wanted.get("binary_data", all_binary) is True:
            chunks.append(tensor.to_bytes())
            outputs.append({**described, "parameters": {**parameters, "binary_data_size": len(chunks[-1])}})
        else:
            outputs.append({**described, **({"parameters": parameters} if parameters else {}), "data": tensor.values})
    request_id = {} if request.id is None else {"id": request.id}
    version = str(loaded.model.number)
    chunks[0] = msgspec.json.encode({"model_name": name, "model_version": version, **request_id, "outputs": outputs})
    if len(chunks) == 1:
        return Response(chunks[0], media_type="application/json")
    headers = {HEAD_LENGTH: str(len(chunks[0]))}
    return Response(b"".join(chunks), headers=headers, media_type="application/octet-stream")
