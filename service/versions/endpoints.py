"""Endpoints of versions, promotions and comparisons."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fastapi import APIRouter
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.audit.entries import About
from core.errors import Forbidden
from core.kprior import State
from core.ledger.quarantine import quarantined_versions
from core.ledger.spec_history import spec_at, specs_at
from core.lifecycle import quarantine_decisions
from core.lifecycle.quarantine_decisions import Decision
from core.lifecycle.rebuild import needs_rebuild, request_rebuild
from core.models import catalog
from core.models.policy import policy_of
from core.promotion.decision import Requester, request_promotion
from core.quality.side_by_side import compare_on_holdout
from core.quality.version_comparison import weight_distance
from core.tables.audit import Action
from core.tables.models import Model
from core.tables.versions import Comparison, Promotion, Version
from core.tracking.links import version_page
from core.versions.coefficients import coefficients
from core.versions.queries import (
    MAX_NUMBER,
    find_version,
    page_comparisons,
    page_promotions,
    page_versions,
    require_in_use,
)
from service.context import Context, ContextDep
from service.http.auth import Admin, Caller, Reader
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write
from service.models.endpoints import Name, of_hold
from service.versions.comparison_schemas import SideBySideResponse, of_pair, of_side
from service.versions.downloads import Number, require_weights
from service.versions.schemas import (
    ComparisonResponse,
    DecisionResponse,
    PromotedResponse,
    PromotionResponse,
    VersionResponse,
    of_comparison,
    of_version,
)

router = APIRouter(prefix="/v1/models/{name}", tags=["Versions"], route_class=AuthenticatedRoute)

R = TypeVar("R", Promotion, Comparison)
T = TypeVar("T", PromotionResponse, ComparisonResponse)


def first_of_page(after: str | None) -> int:
    """The largest number on the page after a cursor; lists are in descending order."""
    return min(parse_cursor(after, MAX_NUMBER + 1) - 1, MAX_NUMBER)


def with_spec(session: Session, model: Model, version: Version, context: Context) -> VersionResponse:
    url = version_page(context.settings.mlflow_pages, model.name, version.mlflow)
    spec = spec_at(session, model.id, model.spec, version.position)
    quarantined = quarantined_versions(session, model).get(version.number, 0)
    return of_version(version, spec, url, policy_of(model).headline, quarantined)


@router.get("/versions", response_model=Page[VersionResponse], responses=problem_responses(404))
def list_versions(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[VersionResponse]:
    """List versions, newest first."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        rows = page_versions(session, model.id, first_of_page(after), limit + 1)
        specs = specs_at(session, model.id, model.spec, [row.position for row in rows])
        pages, headline = context.settings.mlflow_pages, policy_of(model).headline
        quarantined = quarantined_versions(session, model)

        def describe(row: Version) -> VersionResponse:
            url = version_page(pages, name, row.mlflow)
            return of_version(row, specs[row.position], url, headline, quarantined.get(row.number, 0))

        return page_of(rows, limit, describe, lambda row: row.number)


@router.get("/versions/{n}", response_model=VersionResponse, responses=problem_responses(404))
def show_version(name: Name, n: Number, caller: Reader, context: ContextDep) -> VersionResponse:
    """Get a version."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        return with_spec(session, model, find_version(session, model, n), context)


@router.get(
    "/versions/{a}/compare/{b}",
    response_model=SideBySideResponse,
    response_model_by_alias=True,
    responses=problem_responses(404, 409),
)
def compare_versions(name: Name, a: Number, b: Number, caller: Reader, context: ContextDep) -> SideBySideResponse:
    """Compare two versions: specs, metrics and predictions on a sample of the holdout, and coefficients."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        sides = [find_version(session, model, n) for n in (a, b)]
        for version in sides:
            require_in_use(version)
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


@router.post(
    "/versions/{n}/promote",
    response_model=PromotedResponse,
    responses={
        202: {"model": PromotedResponse, "description": "The version was purged; `job` rebuilds and promotes it."},
        **problem_responses(404, 409),
    },
)
def promote_version(name: Name, n: Number, caller: Admin, write: Write) -> Response:
    """Make a version the champion. Promoting an older version is a rollback and holds the model: the version stays
    champion, whatever changes follow, until `resume`.

    If the version was purged, the response has the status 202, and `job` trains a new version at the same position, on
    the examples that are still in force, and promotes that one.
    """

    def promote(session: Session) -> tuple[int, PromotedResponse]:
        model = catalog.find(session, name, caller.models, lock=True)
        version, job = find_version(session, model, n), None
        if needs_rebuild(write.context.store, version):
            job = request_rebuild(session, model, version, caller.key_id, write.request_id).id
        else:
            request_promotion(session, model, version, Requester.PERSON, caller.key_id)
        shown = dict(with_spec(session, model, version, write.context))
        return 202 if job else 200, PromotedResponse(**shown, held=of_hold(model), job=job)

    return write.with_status(caller, promote, Action.VERSION_PROMOTED, About(name, n))


@router.post("/versions/{n}/accept", response_model=DecisionResponse, responses=problem_responses(404, 409))
def accept_version(name: Name, n: Number, caller: Admin, write: Write) -> Response:
    """Accept a version that the promotion gate rejected: put its examples back into force and promote it.

    If the model has learnt other changes since, `job` adapts it to the accepted examples.
    """

    def act(session: Session, model: Model, version: Version) -> Decision:
        return quarantine_decisions.accept(session, model, version, caller.key_id, write.request_id)

    return carry_out(name, n, caller, write, act, Action.VERSION_ACCEPTED)


@router.post("/versions/{n}/discard", response_model=DecisionResponse, responses=problem_responses(404, 409))
def discard_version(name: Name, n: Number, caller: Admin, write: Write) -> Response:
    """Discard a version that the promotion gate rejected: remove the examples that it learnt."""
    return carry_out(name, n, caller, write, quarantine_decisions.discard, Action.VERSION_DISCARDED)


def carry_out(
    name: str,
    n: int,
    caller: Caller,
    write: UnitOfWork,
    act: Callable[[Session, Model, Version], Decision],
    action: Action,
) -> Response:
    """Carry out a person's decision about a rejected version."""

    def respond(session: Session) -> DecisionResponse:
        model = catalog.find(session, name, caller.models, lock=True)
        version = find_version(session, model, n)
        decision = act(session, model, version)
        return DecisionResponse(**dict(with_spec(session, model, version, write.context)), **vars(decision))

    return write(caller, 200, respond, action, About(name, n))


def page_by_id(
    fetch: Callable[[Session, int, int, int], Sequence[R]],
    to_item: Callable[[R], T],
    name: str,
    caller: Caller,
    context: Context,
    limit: int,
    after: str | None,
) -> Page[T]:
    """A page of the promotions or comparisons of a model, newest first."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        rows = fetch(session, model.id, first_of_page(after), limit + 1)
        return page_of(rows, limit, to_item, lambda row: row.id)


@router.get("/promotions", response_model=Page[PromotionResponse], responses=problem_responses(404))
def list_promotions(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[PromotionResponse]:
    """List promotions, newest first."""
    return page_by_id(page_promotions, PromotionResponse.model_validate, name, caller, context, limit, after)


@router.get("/comparisons", response_model=Page[ComparisonResponse], responses=problem_responses(404))
def list_comparisons(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ComparisonResponse]:
    """List comparisons of adapted versions with full retrains at the same positions, newest first."""
    return page_by_id(page_comparisons, of_comparison, name, caller, context, limit, after)
