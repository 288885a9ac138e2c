"""Encoders: upload, list, show and delete ONNX files that models use as their frozen encoders."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.encoders import uploads
from core.errors import Invalid
from core.settings import Settings
from core.tables.audit import Action
from core.tables.documents import TensorDocument
from core.tables.encoders import UploadedEncoder
from service.context import ContextDep
from service.http.auth import Admin, Reader
from service.http.body_threads import run_large
from service.http.middleware import ENCODERS
from service.http.pagination import After, Limit, Page, page_of
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.response_model import ResponseModel
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import Write


class EncoderRoute(AuthenticatedRoute):
    """Encoders are larger than other bodies."""

    @staticmethod
    def max_body_bytes(settings: Settings) -> int:
        return settings.encoder_max_bytes


router = APIRouter(prefix=ENCODERS, tags=["Encoders"], route_class=EncoderRoute)

Digest = Annotated[
    str, Path(description="Digest of the encoder.", pattern=r"^sha256:[0-9a-f]{64}$", examples=["sha256:" + "0" * 64])
]
AUDITED_DIGITS = 32
"""Digits of the digest in the audit log."""
FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class EncoderResponse(ResponseModel):
    """An uploaded encoder."""

    digest: str = Field(examples=["sha256:" + "0" * 64])
    """SHA-256 of the file; a linear architecture names its encoder by it."""
    size: int
    """Bytes of the file."""
    inputs: list[TensorDocument]
    outputs: list[TensorDocument]
    """Outputs of the model. The first one has the features."""
    features: int
    """Number of features."""
    trained_on: Literal["other", "examples"]
    """`other`: the encoder has seen none of the examples that Amend stores. `examples`: it was fitted on them, so
    erasures have to consider it."""
    created_at: datetime


def to_response(encoder: UploadedEncoder) -> EncoderResponse:
    fields = {name: getattr(encoder, name) for name in EncoderResponse.model_fields if name != "digest"}
    return EncoderResponse(digest=f"{uploads.PREFIX}{encoder.digest}", **fields)


@router.post(
    "",
    status_code=201,
    response_model=EncoderResponse,
    responses=problem_responses(409, 413),
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def upload_encoder(
    request: Request,
    caller: Admin,
    context: ContextDep,
    write: Write,
    trained_on: Annotated[
        Literal["other", "examples"],
        Query(description="Whether the encoder was fitted on examples that Amend stores, or has seen none of them."),
    ] = "other",
) -> Response:
    """Upload an ONNX model as an encoder. Its first output has the features: one row of numbers for each input.

    Operators that contain other graphs (`Loop`, `Scan`, `If`), random numbers, custom operators and data in other files
    are not allowed. The file is loaded and run once in a process with limited memory and time.
    """
    caller.require_all_models()
    body = await request.body()
    if not body:
        raise Invalid("encoder_invalid", "The body is empty. Send the ONNX file.")

    def check_and_store() -> Response:
        described = uploads.examine(body, context.settings)

        def store(session: Session) -> EncoderResponse:
            encoder = uploads.upload(session, body, described, trained_on)
            context.store.write(uploads.file_name(encoder.digest), body)
            return to_response(encoder)

        about = lambda found: [About(object_id=audited(found.digest))]  # noqa: E731
        return write(caller, 201, store, Action.ENCODER_UPLOADED, about)

    return await run_large(check_and_store)


@router.get("", response_model=Page[EncoderResponse], responses=problem_responses())
def list_encoders(
    caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[EncoderResponse]:
    """List the uploaded encoders."""
    with context.database.read() as session:
        found = uploads.page(session, after or "", limit + 1)
        return page_of(found, limit, to_response, lambda encoder: encoder.digest)


@router.get("/{digest}", response_model=EncoderResponse, responses=problem_responses(404))
def show_encoder(digest: Digest, caller: Reader, context: ContextDep) -> EncoderResponse:
    """Get the description of an encoder."""
    with context.database.read() as session:
        return to_response(uploads.find(session, digest))


@router.delete("/{digest}", status_code=204, response_class=Response, responses=problem_responses(404, 409))
def delete_encoder(digest: Digest, caller: Admin, context: ContextDep, auditor: AuditorDep) -> None:
    """Delete an encoder that no model uses."""
    caller.require_all_models()
    with context.database.write() as session:
        uploads.delete(session, digest)
        auditor.record(session, caller, Action.ENCODER_DELETED, About(object_id=audited(digest)))
    context.store.delete(uploads.file_name(digest))


def audited(digest: str) -> str:
    return digest.removeprefix(uploads.PREFIX)[:AUDITED_DIGITS]
