"""Endpoints of versions, promotions and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.errors import Forbidden
from core.jobs import holds
from core.kprior import State
from core.ledger.specs import spec_at, specs_at
from core.models import catalog
from core.tables.models import Model
from core.tables.versions import Comparison, Promotion, Version
from core.tracking.links import version_page
from core.versions import history
from core.versions.coefficients import coefficients
from core.versions.comparison import weight_distance
from core.versions.queries import MAX_NUMBER, find_version, page_comparisons, page_promotions, page_versions
from core.versions.side_by_side import compare_on_holdout
from service.context import Context, ContextDep
from service.http.auth import Admin, AuthenticatedRoute, Caller, Reader
from service.http.pages import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.unit_of_work import Write
from service.models.endpoints import Name, hold_answer
from service.versions.downloads import Number, require_weights
from service.versions.pair_schemas import SideBySideAnswer, of_pair, of_side
from service.versions.schemas import (
    ComparisonAnswer,
    PromotedAnswer,
    PromotionAnswer,
    VersionAnswer,
    of_comparison,
    of_promotion,
    of_version,
)

router = APIRouter(prefix="/v1/models/{name}", tags=["Versions"], route_class=AuthenticatedRoute)

R = TypeVar("R", Promotion, Comparison)
T = TypeVar("T", PromotionAnswer, ComparisonAnswer)


def first_of_page(after: str | None) -> int:
    """The largest number that can be on the page after a cursor."""
    return min(parse_cursor(after, MAX_NUMBER + 1) - 1, MAX_NUMBER)


def with_spec(session: Session, model: Model, version: Version, context: Context) -> VersionAnswer:
    url = version_page(context.settings.mlflow_pages, model.name, version.mlflow)
    return of_version(version, spec_at(session, model.id, model.spec, version.position), url)


@router.get("/versions", response_model=Page[VersionAnswer], responses=problem_responses(404))
def list_versions(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[VersionAnswer]:
    """Versions, the newest first."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        rows = page_versions(session, model.id, first_of_page(after), limit + 1)
        specs = specs_at(session, model.id, model.spec, [row.position for row in rows])
        pages = context.settings.mlflow_pages

        def describe(row: Version) -> VersionAnswer:
            return of_version(row, specs[row.position], version_page(pages, name, row.mlflow))

        return page_of(rows, limit, describe, lambda row: row.number)


@router.get("/versions/{n}", response_model=VersionAnswer, responses=problem_responses(404))
def show_version(name: Name, n: Number, caller: Reader, context: ContextDep) -> VersionAnswer:
    """One version."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        return with_spec(session, model, find_version(session, model, n), context)


@router.get(
    "/versions/{a}/compare/{b}",
    response_model=SideBySideAnswer,
    response_model_by_alias=True,
    responses=problem_responses(404, 409),
)
def compare_versions(name: Name, a: Number, b: Number, caller: Reader, context: ContextDep) -> SideBySideAnswer:
    """Two versions side by side: specs, figures and predictions on the sample of the holdout, coefficients."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        sides = [find_version(session, model, n) for n in (a, b)]
        for version in sides:
            history.require_in_use(version)
        specs = specs_at(session, model.id, model.spec, [version.position for version in sides])
    one, other = (State.from_bytes(context.file(version.file, version.sha256)) for version in sides)
    return of_pair(
        [of_side(version, specs[version.position]) for version in sides],
        compare_on_holdout(context.database, model, one, other),
        weight_distance(one, other),
        coefficients(one, other) if sees_weights(caller, model) else None,
    )


def sees_weights(caller: Caller, model: Model) -> bool:
    try:
        require_weights(caller, model)
    except Forbidden:
        return False
    return True


@router.post("/versions/{n}/promote", response_model=PromotedAnswer, responses=problem_responses(404, 409))
def promote_version(name: Name, n: Number, caller: Admin, write: Write) -> Response:
    """Make a version the champion. Promoting one older than the champion is the rollback, and holds the model: it
    serves as it is, whatever came or went since, until `resume`.
    """

    def promote(session: Session) -> PromotedAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        version = find_version(session, model, n)
        holds.promote_by_hand(session, model, version, by=caller.key_id)
        return PromotedAnswer(**dict(with_spec(session, model, version, write.context)), held=hold_answer(model))

    return write(caller.credential, 200, promote)


def page_by_id(
    fetch: Callable[[Session, int, int, int], Sequence[R]],
    answer: Callable[[R], T],
    name: str,
    caller: Caller,
    context: Context,
    limit: int,
    after: str | None,
) -> Page[T]:
    """A page of what a model has of one kind, the newest first."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        rows = fetch(session, model.id, first_of_page(after), limit + 1)
        return page_of(rows, limit, answer, lambda row: row.id)


@router.get("/promotions", response_model=Page[PromotionAnswer], responses=problem_responses(404))
def list_promotions(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[PromotionAnswer]:
    """What was champion when, the newest first."""
    return page_by_id(page_promotions, of_promotion, name, caller, context, limit, after)


@router.get("/comparisons", response_model=Page[ComparisonAnswer], responses=problem_responses(404))
def list_comparisons(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ComparisonAnswer]:
    """Adapted versions next to full retrains at the same positions, the newest first."""
    return page_by_id(page_comparisons, of_comparison, name, caller, context, limit, after)
