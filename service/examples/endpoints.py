"""Endpoints of examples."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BeforeValidator
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import ledger
from core.audit.entries import About
from core.errors import Invalid, NotFound
from core.jobs import queue
from core.keys.quotas import charge, charged
from core.kprior.model.spec import Spec, frozen_encoder
from core.ledger import queries
from core.ledger.additions import Ingest, LayoutChanged
from core.ledger.batch import Batch
from core.ledger.encodings import key_of
from core.ledger.spec_history import layout_at, spec_at
from core.models import catalog
from core.models.field_types import Moment
from core.models.policy import policy_of
from core.tables.audit import Action
from service import prometheus_counters
from service.context import CachedModel, Context, ContextDep
from service.examples import formats
from service.examples.readers import FIELD, ExampleReader, check_text
from service.examples.schemas import BODY, ONE, AddedResponse, ExampleResponse, ReplacedResponse, of_example, of_pending
from service.http.auth import Caller, Ingester, Reader
from service.http.body_threads import run_for_body
from service.http.pagination import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
from service.http.routes import AuthenticatedRoute
from service.http.unit_of_work import UnitOfWork, Write
from service.models.endpoints import Name
from service.parsing.inputs import inputs_of
from service.parsing.json_items import errors_of_one
from service.predictions.unlabelled import predict_unlabelled
from service.predictions.version_cache import VersionCache

router = APIRouter(prefix="/v1/models/{name}/examples", tags=["Examples"], route_class=AuthenticatedRoute)


Source = Annotated[
    str | None,
    Query(
        description="Source of the examples that name none: a load, a file or a system.", min_length=1, max_length=200
    ),
]


@router.post(
    "",
    status_code=201,
    response_model=AddedResponse,
    responses=problem_responses(404, 409, 413, 415),
    openapi_extra=BODY,
)
async def add_examples(
    request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write, source: Source = None
) -> Response:
    """Add a batch of examples: JSON, NDJSON, CSV (with a header; columns id, subject, y, weight, split, time, source
    and the features), an Arrow stream or Parquet (the same columns, or `x` as a list).

    An example with a known id and the same content is counted under `duplicates`; with different content it is a
    conflict, and nothing of the batch is stored. If `split` is missing, it is derived from the policy's `holdout` and
    a hash of the subject, or of the id if the example has no subject.

    An example whose `y` is null is stored with the champion's prediction, and trained on once its label arrives.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    versions = request.app.state.versions
    return await run_for_body(body, lambda: store(name, kind, body, caller, versions, write, source))


def store(
    name: str,
    kind: str,
    body: bytes,
    caller: Caller,
    versions: VersionCache,
    write: UnitOfWork,
    source: str | None = None,
) -> Response:
    """Parse a body and add its examples. Called in a thread by the endpoint and by the fast path.

    `source` is that of all examples that name none.
    """
    context = write.context

    def act(model: CachedModel) -> Response:
        batch = read_body(model, context, kind, body, unlabelled=True)
        if batch.unlabelled.any():
            batch = predict_unlabelled(batch, name, model, caller, versions)
        if source is not None:
            check_text([source], "source", "source_invalid")
            batch = replace(batch, sources=batch.sources_or([source] * len(batch)))
        return store_in(name, model, batch, caller, context, write, len(body))

    return with_cached_model(name, caller, context, act)


def with_cached_model(name: str, caller: Caller, context: Context, act: Callable[[CachedModel], Response]) -> Response:
    """Call `act` with the cached model, and again with the current model if the cache was outdated."""
    model = find_cached_model(name, caller, context)
    try:
        return act(model)
    except NotFound as error:
        if error.code != "model_not_found":
            raise
        # another process may have deleted the model and created it again with a different schema
        context.models.clear()
        current = find_cached_model(name, caller, context)
        if current.id == model.id:
            raise
        return act(current)
    except (LayoutChanged, Invalid):
        # another process may have changed the input or the target: parse the body for the current model
        context.models.clear()
        current = find_cached_model(name, caller, context)
        if (current.id, current.layout_position) == (model.id, model.layout_position):
            raise
        return act(current)


def read_body(
    model: CachedModel, context: Context, kind: str, body: bytes, id: str | None = None, unlabelled: bool = False
) -> Batch:
    """The batch of a body; with `id`, the body is one example whose id is in the path."""
    settings = context.settings
    reader = ExampleReader(
        model.spec, settings.max_batch, settings.max_body_bytes, settings.secret, settings.caseless_subjects, unlabelled
    )
    return replace(formats.read(reader, kind, body, id), layout_position=model.layout_position)


def store_in(
    name: str, model: CachedModel, batch: Batch, caller: Caller, context: Context, write: UnitOfWork, size: int
) -> Response:
    """Add the examples of a body of `size` bytes."""
    ingest = Ingest(context.screen, write.auditor.origin(caller), name)

    def within(act: Callable[[Session], ledger.Added]) -> Response:
        def charge_and_add(session: Session) -> AddedResponse:
            charge(session, caller.key_id, caller.quota, len(batch), size)
            return to_response(act(session))

        return write(caller, 201, charge_and_add, Action.EXAMPLES_ADDED, About(name))

    # only a response that is stored for an Idempotency-Key needs the transaction of the request
    if write.key is not None:
        stored = ledger.add(context.database, model.id, model.holdout, batch, within, ingest)
    else:
        with charged(context.database, caller.key_id, caller.quota, len(batch), size):
            stored = ledger.add(context.database, model.id, model.holdout, batch, None, ingest)
    prometheus_counters.count_unseen(name, inputs_of(model.spec).count_other(batch.x))
    if isinstance(stored, Response):
        return stored
    return Response(to_response(stored).model_dump_json(), 201, media_type="application/json")


def to_response(added: ledger.Added) -> AddedResponse:
    prometheus_counters.EXAMPLES.labels("accepted").inc(added.accepted)
    prometheus_counters.EXAMPLES.labels("duplicate").inc(added.duplicates)
    return AddedResponse(**vars(added))


def find_cached_model(name: str, caller: Caller, context: Context) -> CachedModel:
    """The model from the cache, at most `cache_seconds` old, or from the database."""
    cached = context.models.get(name)
    if cached is None or (caller.models is not None and name not in caller.models):
        with context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            spec = spec_at(session, model.id, model.spec, model.layout_position)
            policy = policy_of(model)
            cached = CachedModel(model.id, spec, model.layout_position, policy.holdout_draw, policy.challenger)
        context.models.put(name, cached)
    return cached


NUMBERS_PER_PAGE = 200_000
"""Limit of the numbers on one page of examples: a page of images could take gigabytes."""


def require_date(text: str) -> str:
    """Reject numbers, which would otherwise be read as seconds since 1970."""
    if not re.match(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        raise ValueError("must be an RFC 3339 time, such as 2026-03-01T09:00:00Z")
    return text


@dataclass
class ExampleQuery:
    """The query parameters that choose examples."""

    state: Annotated[
        Literal["active", "quarantined", "encoding_failed"],
        Query(
            description="`quarantined`: examples in quarantine; `encoding_failed`: active examples that the model's "
            "encoder could not encode, which are not trained on."
        ),
    ] = "active"
    label: Annotated[
        Literal["pending"] | None, Query(description="`pending`: examples without a label, ordered by id.")
    ] = None
    source: Annotated[str | None, Query(description="Only examples from this source.", max_length=200)] = None
    split: Annotated[Literal["train", "holdout"] | None, Query(description="Only one part of the examples.")] = None
    since: Annotated[
        Moment | None,
        BeforeValidator(require_date),
        Query(description="Only examples whose event time, or else time of arrival, is not earlier."),
    ] = None

    def to_filter(self, spec: Spec) -> queries.ExampleFilter:
        holdout, failed_by = None if self.split is None else self.split == "holdout", None
        if self.state == "encoding_failed":
            encoder = frozen_encoder(spec)
            failed_by = "" if encoder is None else key_of(encoder)
        return queries.ExampleFilter(self.state == "quarantined", failed_by, self.source, holdout, self.since)


@router.get("", response_model=Page[ExampleResponse], responses=problem_responses(404))
def list_examples(
    name: Name,
    caller: Reader,
    context: ContextDep,
    auditor: AuditorDep,
    chosen: Annotated[ExampleQuery, Depends()],
    limit: Limit = 100,
    after: After = None,
) -> Page[ExampleResponse]:
    """List the active examples in the order of their positions. A page of large examples is shorter than `limit`."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        layout = layout_at(session, model.id, model.head)
        limit = max(1, min(limit, NUMBERS_PER_PAGE // inputs_of(layout.spec).width))
        if chosen.label == "pending":
            waiting = queries.page_pending(session, model, after or "", limit + 1, chosen.to_filter(layout.spec))
            page = page_of(waiting, limit, lambda row: of_pending(row, layout), lambda row: row.id)
        else:
            rows = queries.page_examples(
                session, model, parse_cursor(after, 0), limit + 1, chosen.to_filter(layout.spec)
            )
            page = page_of(rows, limit, lambda row: of_example(row, layout), lambda row: row.position)
    if page.items:
        auditor.record_read(caller, Action.EXAMPLES_READ, About(name, counts={"examples": len(page.items)}))
    return page


Id = Annotated[str, Path(description="Id of the example.", max_length=200, examples=["a1"])]


@router.put(
    "",
    status_code=202,
    response_model=ReplacedResponse,
    responses=problem_responses(404, 409, 413, 415),
    openapi_extra=BODY,
)
async def replace_examples(
    request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write
) -> Response:
    """Correct a batch of active examples, all or none, in any format in which examples can be added.

    Each example replaces the one with the same id, at a new position; identical content changes nothing. An example
    keeps its `subject`, `weight` and `split` where these are missing.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()

    def act(model: CachedModel) -> Response:
        return replace_in(name, model, read_body(model, context, kind, body), caller, write, len(body))

    return await run_for_body(body, lambda: with_cached_model(name, caller, context, act))


@router.put(
    "/{id:path}",
    status_code=202,
    response_model=ReplacedResponse,
    responses=problem_responses(404, 409, 413, 415),
    openapi_extra=ONE,
)
async def replace_example(
    request: Request, name: Name, id: Id, caller: Ingester, context: ContextDep, write: Write
) -> Response:
    """Correct an active example: replace its content at one new position of the ledger, and adapt the model.

    Identical content changes nothing. The example keeps its `subject`, `weight` and `split` where these are missing.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()

    def act(model: CachedModel) -> Response:
        if not id or not id.isprintable():
            raise NotFound("example_not_found", "The example does not exist.")
        with errors_of_one(FIELD):
            return replace_in(name, model, read_body(model, context, kind, body, id), caller, write, len(body))

    return await run_for_body(body, lambda: with_cached_model(name, caller, context, act))


def replace_in(name: str, cached: CachedModel, batch: Batch, caller: Caller, write: UnitOfWork, size: int) -> Response:
    """Replace examples with those of a body of `size` bytes, and enqueue an adaptation, in one transaction."""

    def correct(session: Session) -> ReplacedResponse:
        charge(session, caller.key_id, caller.quota, len(batch), size)
        model = catalog.find(session, name, caller.models, lock=True)
        if model.id != cached.id:
            raise NotFound("model_not_found", "The model does not exist.")
        replaced = ledger.replace_examples(session, model, batch, write.context.screen)
        job = queue.enqueue_adaptation(session, model, write.request_id) if replaced.replaced else None
        prometheus_counters.EXAMPLES.labels("replaced").inc(replaced.replaced)
        prometheus_counters.count_unseen(name, inputs_of(cached.spec).count_other(batch.x))
        return ReplacedResponse(**vars(replaced), position=model.head, job=job)

    return write(caller, 202, correct, Action.EXAMPLES_REPLACED, About(name))


@router.get("/{id:path}", response_model=ExampleResponse, responses=problem_responses(404))
def show_example(name: Name, id: Id, caller: Reader, context: ContextDep, auditor: AuditorDep) -> ExampleResponse:
    """Get an active example, or one without a label, by its id."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        layout = layout_at(session, model.id, model.head)
        waiting = queries.find_pending(session, model, id)
        if waiting is not None:
            shown = of_pending(waiting, layout)
        else:
            shown = of_example(queries.find_example(session, model, id), layout)
    auditor.record_read(caller, Action.EXAMPLES_READ, About(name, counts={"examples": 1}))
    return shown
