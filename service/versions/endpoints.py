"""Endpoints of versions, promotions and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path
from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session
from starlette.responses import Response

from core.errors import NotFound
from core.jobs import queue
from core.jobs.tables import JobKind
from core.keys.table import Scope
from core.ledger.tables import Change, ChangeKind
from core.models import catalog
from core.versions import history
from core.versions.tables import Comparison, Promotion, Version, VersionState
from service.auth import Admin, Caller, Downloader, Guarded, Reader
from service.context import Context, Shared
from service.models.endpoints import Name
from service.pages import After, Limit, Page, number, page_of
from service.problems import documented
from service.versions.schemas import (
    ComparisonAnswer,
    PromotionAnswer,
    VersionAnswer,
    of_comparison,
    of_promotion,
    of_version,
)
from service.writing import Write

router = APIRouter(prefix="/v1/models/{name}", tags=["Versions"], route_class=Guarded)

T = TypeVar("T")
LAST = 2**31 - 1
"""The largest number that a version can have."""
Number = Annotated[int, Path(ge=1, le=LAST, description="The version's number.", examples=[1])]


def newest_first(
    context: Context,
    caller: Caller,
    name: str,
    key: InstrumentedAttribute[int],
    shown: Callable[[Any], T],
    limit: int,
    after: str | None,
) -> Page[T]:
    """A page of what a model has of one kind, by its number."""
    table = key.class_
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        query = select(table).where(table.model_id == model.id, key <= min(number(after, LAST + 1) - 1, LAST))
        rows = session.scalars(query.order_by(key.desc()).limit(limit + 1)).all()
        return page_of(rows, limit, shown, lambda row: getattr(row, key.key))


@router.get("/versions", response_model=Page[VersionAnswer], responses=documented(404))
def list_versions(
    name: Name, caller: Reader, context: Shared, limit: Limit = 100, after: After = None
) -> Page[VersionAnswer]:
    """Versions, the newest first."""
    return newest_first(context, caller, name, Version.number, of_version, limit, after)


@router.get("/versions/{n}", response_model=VersionAnswer, responses=documented(404))
def show_version(name: Name, n: Number, caller: Reader, context: Shared) -> VersionAnswer:
    """One version."""
    with context.database.read() as session:
        return of_version(history.find(session, catalog.find(session, name, caller.models), n))


@router.post("/versions/{n}/promote", response_model=VersionAnswer, responses=documented(404, 409))
def promote_version(name: Name, n: Number, caller: Admin, write: Write) -> Response:
    """Make a version the champion. Promoting an older one is the rollback; what changed since is adapted to again: at
    once if examples were removed, else by the policy. Set its `promote` to manual first to stay with the older one.
    """

    def promote(session: Session) -> VersionAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        version = history.find(session, model, n)
        history.promote(session, model, version, by=caller.key_id)
        removed = (Change.model_id == model.id, Change.kind == ChangeKind.REMOVED, Change.last > version.position)
        if session.scalar(select(Change.last).where(*removed).limit(1)) is not None and model.train_count:
            # it knows examples that were removed since: it must forget them again
            queue.due(session, model, JobKind.ADAPT, write.request_id)
        return of_version(version)

    return write(caller.credential, 200, promote)


@router.get(
    "/versions/{n}/weights",
    response_class=Response,
    responses={
        200: {
            "description": "The safetensors file.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        **documented(404, 409),
    },
)
def download_weights(name: Name, n: Number, caller: Downloader, context: Shared) -> Response:
    """The version's state as a safetensors file. It takes the scope `weights`: more can be computed from weights than
    predictions tell. With certified removal it takes an admin key: the file holds the perturbation, and the promise
    holds only as long as nobody knows it.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        if model.training.get("removal"):
            caller.require(Scope.ADMIN)
        version = history.find(session, model, n)
        if version.state is VersionState.PURGED:
            raise NotFound("version_purged", f"Version {n} is purged: its weights are gone.")
        history.require_in_use(version)
        file, sha256 = version.file, version.sha256
    headers = {"Content-Disposition": f'attachment; filename="{name}-{n}.safetensors"', "ETag": f'"{sha256}"'}
    return Response(context.file(file, sha256), headers=headers, media_type="application/octet-stream")


@router.get("/promotions", response_model=Page[PromotionAnswer], responses=documented(404))
def list_promotions(
    name: Name, caller: Reader, context: Shared, limit: Limit = 100, after: After = None
) -> Page[PromotionAnswer]:
    """What was champion when, the newest first."""
    return newest_first(context, caller, name, Promotion.id, of_promotion, limit, after)


@router.get("/comparisons", response_model=Page[ComparisonAnswer], responses=documented(404))
def list_comparisons(
    name: Name, caller: Reader, context: Shared, limit: Limit = 100, after: After = None
) -> Page[ComparisonAnswer]:
    """Adapted versions next to full retrains at the same positions, the newest first."""
    return newest_first(context, caller, name, Comparison.id, of_comparison, limit, after)
