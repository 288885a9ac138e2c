"""Downloads of a version: weights, ONNX file, coefficients by name."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BeforeValidator
from starlette.responses import Response

from core.audit.entries import About
from core.encoders import uploads
from core.errors import NotFound
from core.kprior import State
from core.models import catalog
from core.models.policy import policy_of
from core.models.training_options import training_of
from core.tables.audit import Action
from core.tables.keys import Scope
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions.coefficients import named_coefficients
from core.versions.queries import MAX_NUMBER, find_version, require_in_use
from service.context import Context, ContextDep
from service.http.auth import Caller, Downloader
from service.http.body_schemas import Schema
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.models.endpoints import Name
from service.versions.schemas import CoefficientsResponse

router = APIRouter(prefix="/v1/models/{name}/versions/{n}", tags=["Versions"], route_class=AuthenticatedRoute)


def file_responses(description: str) -> dict[int | str, Schema]:
    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"description": description, "content": content}, **problem_responses(404, 409)}


def refuse_champion(given: object) -> object:
    """Reject `champion` as a version: a URL should always mean the same version, in caches and in logs."""
    if given == "champion":
        raise ValueError("must be a version number; the field `champion` of the model has the number of the champion")
    return given


Number = Annotated[
    int, BeforeValidator(refuse_champion), Path(ge=1, le=MAX_NUMBER, description="Version number.", examples=[1])
]


def require_weights(caller: Caller, model: Model) -> None:
    """Raise Forbidden unless the key may read weights. With certified removal this requires the scope `admin`, because
    the guarantee holds only while the perturbation is secret.
    """
    caller.require(Scope.ADMIN if training_of(model).removal else Scope.WEIGHTS)


def find_downloadable(context: Context, name: str, n: int, caller: Caller) -> Version:
    """A version whose weights the key may read."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        require_weights(caller, model)
        version = find_version(session, model, n)
        if version.state is VersionState.PURGED:
            raise NotFound("version_purged", f"Version {n} was purged. Its weights are deleted.")
        require_in_use(version)
        return version


@router.get("/weights", response_class=Response, responses=file_responses("The safetensors file."))
def download_weights(name: Name, n: Number, caller: Downloader, context: ContextDep, auditor: AuditorDep) -> Response:
    """Download the state of a version as a safetensors file. Requires the scope `weights`, because weights reveal more
    than predictions. With certified removal it requires the scope `admin`: the file contains the perturbation, and the
    guarantee holds only while that is secret.
    """
    version = find_downloadable(context, name, n, caller)
    file, sha256 = version.file, version.sha256
    headers = {"Content-Disposition": f'attachment; filename="{name}-{n}.safetensors"', "ETag": f'"{sha256}"'}
    content = context.file(file, sha256)
    auditor.record_read(caller, Action.WEIGHTS_DOWNLOADED, About(name, n))
    return Response(content, headers=headers, media_type="application/octet-stream")


@router.get("/onnx", response_class=Response, responses=file_responses("The ONNX file."))
def export_onnx(name: Name, n: Number, caller: Downloader, context: ContextDep, auditor: AuditorDep) -> Response:
    """Download a version as an ONNX file that maps raw inputs to the service's predictions. A vector or an image is the
    input `x`; a table has one input of shape (rows, 1) per column: numbers (NaN: missing) and categories as text ("":
    missing). The outputs are `mean` or `probabilities`, and `class`. Requires the scope `weights`.
    """
    from core.versions.onnx_export import (
        to_onnx,  # importing onnx takes half a second, and most processes never need it
    )

    version = find_downloadable(context, name, n, caller)
    with context.database.read() as session:
        threshold = policy_of(catalog.find(session, name, caller.models)).threshold
    state = State.from_bytes(context.file(version.file, version.sha256))
    content = to_onnx(state, name, n, threshold, uploads.find_file(context.store, state.spec))
    auditor.record_read(caller, Action.ONNX_DOWNLOADED, About(name, n))
    headers = {"Content-Disposition": f'attachment; filename="{name}-{n}.onnx"'}
    return Response(content, headers=headers, media_type="application/octet-stream")


@router.get(
    "/coefficients",
    response_model=CoefficientsResponse,
    response_model_by_alias=True,
    responses=problem_responses(404, 409),
)
def list_coefficients(
    name: Name, n: Number, caller: Downloader, context: ContextDep, auditor: AuditorDep
) -> CoefficientsResponse:
    """List the coefficients of a linear model by feature name, in the units of the inputs and in standardised units.
    Requires the scope `weights`.
    """
    version = find_downloadable(context, name, n, caller)
    state = State.from_bytes(context.file(version.file, version.sha256))
    response = CoefficientsResponse(items=named_coefficients(state))
    auditor.record_read(caller, Action.COEFFICIENTS_READ, About(name, n))
    return response
