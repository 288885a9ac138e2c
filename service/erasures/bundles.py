"""The endpoint of bundles: all evidence about an erasure in one file."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from core.audit.entries import About
from core.erasure import queries
from core.erasure.bundle import BundleRequest, find_versions, make_bundle, names_of_rows
from core.models.training_options import training_of
from core.register import log, signed_tree
from core.tables.audit import Action
from core.tables.erasures import Receipt
from core.tables.keys import Scope
from core.tables.models import Model
from core.tables.register import RecordKind
from service.context import ContextDep
from service.erasures.endpoints import Id
from service.http.auth import Caller, Eraser
from service.http.body_schemas import Schema
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute

router = APIRouter(prefix="/v1", tags=["Erasure"], route_class=AuthenticatedRoute)

ZIP: dict[int | str, Schema] = {
    200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}},
    **problem_responses(404, 409),
}


def may_read_weights(caller: Caller, model: Model) -> bool:
    """Whether the caller may download the weights of a model, by the same rule as for single versions."""
    wanted = {Scope.ADMIN} if training_of(model).removal else {Scope.ADMIN, Scope.WEIGHTS}
    return bool(caller.scopes & wanted)


@router.get("/erasures/{id}/bundle", response_class=Response, responses=ZIP)
def download_bundle(
    id: Id,
    caller: Eraser,
    context: ContextDep,
    auditor: AuditorDep,
    rows: Annotated[
        bool, Query(description="Include the retained rows of linear models. Requires the scope `admin`.")
    ] = False,
    old: Annotated[
        int | None,
        Query(alias="from", ge=0, le=2**62, description="Size of an older head; adds a proof that the register grew."),
    ] = None,
) -> Response:
    """Download the evidence about an erasure as a zip file that `amend verify` checks offline.

    It contains the receipt, the entries of the request and their proofs. With the scope `weights`, it also contains the
    versions that the receipt names. The register and the audit log record the download.
    """
    caller.require_all_models()
    if rows:
        caller.require(Scope.ADMIN)
    with context.database.write() as session:
        erasure = queries.find(session, id)
        full_id, receipt = erasure.id, session.get(Receipt, erasure.receipt) if erasure.receipt else None
        if old is not None:
            signed_tree.require_size(session, old)
        versions = find_versions(session, erasure, receipt) if receipt else []
        copied = [About(m.name, v.number, erasure_id=full_id) for m, v, _ in versions if may_read_weights(caller, m)]
        positions = {m.name: v.position for m, v, _ in versions}
        for about in copied or [About(erasure_id=full_id)]:
            auditor.record(session, caller, Action.BUNDLE_DOWNLOADED, about)
        log.record(session, RecordKind.EXPORTED, caller.key_id, full_id, what="bundle", rows=rows)
    context.write_register_files()
    with context.database.read() as session:
        erasure = queries.find(session, full_id)
    wanted = BundleRequest(lambda model: may_read_weights(caller, model), rows, [] if old is None else [old])
    content = make_bundle(context.database, context.store, erasure, wanted)
    for name in names_of_rows(content):  # copies of other people's data, which their receipts have to list
        auditor.record_read(caller, Action.EXAMPLES_EXPORTED, About(name, position=positions[name], erasure_id=full_id))
    disposition = f'attachment; filename="erasure-{erasure.id}.zip"'
    return Response(content, media_type="application/zip", headers={"Content-Disposition": disposition})
