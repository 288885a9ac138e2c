"""Endpoints that hand out a version: its weights, its coefficients by name, an ONNX file."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BeforeValidator
from starlette.responses import Response

from core.errors import NotFound
from core.kprior import State
from core.models import catalog
from core.models.training import training_of
from core.tables.keys import Scope
from core.tables.models import Model
from core.tables.versions import Version, VersionState
from core.versions import history
from core.versions.coefficients import named_coefficients
from core.versions.queries import MAX_NUMBER, find_version
from service.context import Context, ContextDep
from service.http.auth import AuthenticatedRoute, Caller, Downloader
from service.http.problems import problem_responses
from service.models.endpoints import Name
from service.versions.schemas import CoefficientsAnswer, of_coefficient

router = APIRouter(prefix="/v1/models/{name}/versions/{n}", tags=["Versions"], route_class=AuthenticatedRoute)


def refuse_champion(given: object) -> object:
    """Versions are numbers here: an address that means another version tomorrow is none to cache or to log."""
    if given == "champion":
        raise ValueError("must be a version's number; the model's `champion` says which it is")
    return given


Number = Annotated[
    int, BeforeValidator(refuse_champion), Path(ge=1, le=MAX_NUMBER, description="The version's number.", examples=[1])
]


def require_weights(caller: Caller, model: Model) -> None:
    """Forbidden, unless the key may read weights; with certified removal admin's alone may: the promise holds only as
    long as nobody knows the perturbation.
    """
    caller.require(Scope.ADMIN if training_of(model).removal else Scope.WEIGHTS)


def find_downloadable(context: Context, name: str, n: int, caller: Caller) -> Version:
    """A version whose weights this key may read."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        require_weights(caller, model)
        version = find_version(session, model, n)
        if version.state is VersionState.PURGED:
            raise NotFound("version_purged", f"Version {n} is purged: its weights are gone.")
        history.require_in_use(version)
        return version


@router.get(
    "/weights",
    response_class=Response,
    responses={
        200: {
            "description": "The safetensors file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problem_responses(404, 409),
    },
)
def download_weights(name: Name, n: Number, caller: Downloader, context: ContextDep) -> Response:
    """The version's state as a safetensors file. It takes the scope `weights`: more can be computed from weights than
    predictions tell. With certified removal it takes an admin key: the file holds the perturbation, and the promise
    holds only as long as nobody knows it.
    """
    version = find_downloadable(context, name, n, caller)
    file, sha256 = version.file, version.sha256
    headers = {"Content-Disposition": f'attachment; filename="{name}-{n}.safetensors"', "ETag": f'"{sha256}"'}
    return Response(context.file(file, sha256), headers=headers, media_type="application/octet-stream")


@router.get(
    "/onnx",
    response_class=Response,
    responses={
        200: {
            "description": "The ONNX file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problem_responses(404, 409),
    },
)
def export_onnx(name: Name, n: Number, caller: Downloader, context: ContextDep) -> Response:
    """The version as an ONNX file that takes raw inputs and gives the service's predictions, for any runtime. A vector
    or an image is the input `x`; a table has an input for each column, (rows, 1): numbers (NaN: missing), categories as
    text ("": missing). Outputs are `mean`, or `probabilities`, and `class`. It takes the scope `weights`.
    """
    from core.versions.onnx_graph import to_onnx  # takes half a second, which most processes never need

    version = find_downloadable(context, name, n, caller)
    content = to_onnx(State.from_bytes(context.file(version.file, version.sha256)), name, n)
    headers = {"Content-Disposition": f'attachment; filename="{name}-{n}.onnx"'}
    return Response(content, headers=headers, media_type="application/octet-stream")


@router.get(
    "/coefficients",
    response_model=CoefficientsAnswer,
    response_model_by_alias=True,
    responses=problem_responses(404, 409),
)
def list_coefficients(name: Name, n: Number, caller: Downloader, context: ContextDep) -> CoefficientsAnswer:
    """The coefficients of a linear model by the names of its features, in the units of the inputs and in the model's
    own. They are its weights: it takes the scope `weights`.
    """
    version = find_downloadable(context, name, n, caller)
    state = State.from_bytes(context.file(version.file, version.sha256))
    return CoefficientsAnswer(items=[of_coefficient(found) for found in named_coefficients(state)])
