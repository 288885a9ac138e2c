"""Endpoints of examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from core import ledger
from core.errors import Invalid, NotFound
from core.jobs import queue
from core.ledger import queries
from core.ledger.additions import LayoutChanged
from core.ledger.batch import Batch
from core.ledger.specs import layout_at, spec_at
from core.models import catalog
from core.models.policy import policy_of
from service import metrics
from service.context import Context, ContextDep, RecentModel
from service.examples import formats
from service.examples.reader import FIELD
from service.examples.reader import Reader as BodyReader
from service.examples.schemas import BODY, ONE, AddedAnswer, ExampleAnswer, ReplacedAnswer, of_example
from service.http.auth import AuthenticatedRoute, Caller, Ingester, Reader
from service.http.pages import After, Limit, Page, page_of, parse_cursor
from service.http.problems import problem_responses
from service.http.unit_of_work import UnitOfWork, Write
from service.models.endpoints import Name
from service.parsing.inputs import inputs_of
from service.parsing.json_items import errors_of_one
from service.threads import run_for_body

router = APIRouter(prefix="/v1/models/{name}/examples", tags=["Examples"], route_class=AuthenticatedRoute)


@router.post(
    "", status_code=201, response_model=AddedAnswer, responses=problem_responses(404, 409, 413, 415), openapi_extra=BODY
)
async def add_examples(request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write) -> Response:
    """Add a batch of examples: JSON, NDJSON, CSV (header; columns id, subject, y, weight, split and the features), an
    Arrow stream or Parquet (the same columns, or `x` as a list).

    The same id with the same content again is counted under `duplicates`; with other content it is a conflict, and
    nothing of the batch is stored. Without a `split` the id decides, by its hash and the policy's holdout share.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    return await run_for_body(body, lambda: store(name, kind, body, caller, context, write))


def store(name: str, kind: str, body: bytes, caller: Caller, context: Context, write: UnitOfWork) -> Response:
    """Parse a body and add its examples; what the endpoint and the fast path do in a thread."""
    return with_recent(
        name,
        caller,
        context,
        lambda model: store_in(name, model, read_body(model, context, kind, body), caller, context, write),
    )


def with_recent(name: str, caller: Caller, context: Context, act: Callable[[RecentModel], Response]) -> Response:
    """Do something with a model as it was a moment ago; again, if that one is gone."""
    model = find_recent(name, caller, context)
    try:
        return act(model)
    except NotFound as error:
        if error.code != "model_not_found":
            raise
        # perhaps deleted and made anew by another process, with another schema
        context.models.clear()
        again = find_recent(name, caller, context)
        if again.id == model.id:
            raise
        return act(again)
    except (LayoutChanged, Invalid):
        # perhaps by another process: what was sent is read as the model is now
        context.models.clear()
        again = find_recent(name, caller, context)
        if (again.id, again.layout) == (model.id, model.layout):
            raise
        return act(again)


def read_body(model: RecentModel, context: Context, kind: str, body: bytes, id: str | None = None) -> Batch:
    """The batch of a body, or of that of one example, whose id is in the path."""
    settings = context.settings
    reader = BodyReader(
        model.spec, settings.max_batch, settings.max_body_bytes, settings.secret, settings.caseless_subjects
    )
    return replace(formats.read(reader, kind, body, id), layout=model.layout)


def store_in(
    name: str, model: RecentModel, batch: Batch, caller: Caller, context: Context, write: UnitOfWork
) -> Response:
    def within(act: Callable[[Session], ledger.Added]) -> Response:
        return write(caller.credential, 201, lambda session: answer_of(act(session)))

    # only an answer that is kept for repetitions needs the request's own transaction
    stored = ledger.add(context.database, model.id, model.share, batch, None if write.key is None else within)
    metrics.count_unseen(name, inputs_of(model.spec).count_other(batch.x))
    if isinstance(stored, Response):
        return stored
    return Response(answer_of(stored).model_dump_json(), 201, media_type="application/json")


def answer_of(added: ledger.Added) -> AddedAnswer:
    metrics.EXAMPLES.labels("accepted").inc(added.accepted)
    metrics.EXAMPLES.labels("duplicate").inc(added.duplicates)
    return AddedAnswer(**vars(added))


def find_recent(name: str, caller: Caller, context: Context) -> RecentModel:
    """A model as it was a moment ago."""
    found = context.models.get(name)
    if found is None or (caller.models is not None and name not in caller.models):
        with context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            spec = spec_at(session, model.id, model.spec, model.layout)
            found = RecentModel(model.id, spec, model.layout, policy_of(model).holdout)
        context.models.put(name, found)
    return found


NUMBERS_PER_PAGE = 200_000
"""Numbers on one page of examples: without a limit, a page of images could take gigabytes."""


@router.get("", response_model=Page[ExampleAnswer], responses=problem_responses(404))
def list_examples(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ExampleAnswer]:
    """The examples in force, in the order they came. A page of large ones is shorter than `limit`."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        layout = layout_at(session, model.id, model.head)
        limit = max(1, min(limit, NUMBERS_PER_PAGE // inputs_of(layout.spec).width))
        rows = queries.page_examples(session, model, parse_cursor(after, 0), limit + 1)
        return page_of(rows, limit, lambda row: of_example(row, layout), lambda row: row.position)


Id = Annotated[str, Path(max_length=200, examples=["a1"])]


@router.put(
    "",
    status_code=202,
    response_model=ReplacedAnswer,
    responses=problem_responses(404, 409, 413, 415),
    openapi_extra=BODY,
)
async def replace_examples(
    request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write
) -> Response:
    """Correct a batch of examples in force, in any form in which they can be added: all of them, or none.

    Each is replaced by the one with its id, at a position of its own; what is so already stays. Without a `subject`, a
    `weight` or a `split` it keeps its own.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()

    def act(model: RecentModel) -> Response:
        return replace_in(name, model, read_body(model, context, kind, body), caller, write)

    return await run_for_body(body, lambda: with_recent(name, caller, context, act))


@router.put(
    "/{id:path}",
    status_code=202,
    response_model=ReplacedAnswer,
    responses=problem_responses(404, 409, 413, 415),
    openapi_extra=ONE,
)
async def replace_example(
    request: Request, name: Name, id: Id, caller: Ingester, context: ContextDep, write: Write
) -> Response:
    """Correct an example in force: it is replaced by this one, which has its id, at one position of the ledger.

    The model is adapted to it. The same content again does nothing. Without a `subject`, a `weight` or a `split` it
    keeps its own.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()

    def act(model: RecentModel) -> Response:
        if not id or not id.isprintable():
            raise NotFound("example_not_found", "There is no such example in force.")
        with errors_of_one(FIELD):
            return replace_in(name, model, read_body(model, context, kind, body, id), caller, write)

    return await run_for_body(body, lambda: with_recent(name, caller, context, act))


def replace_in(name: str, recent: RecentModel, batch: Batch, caller: Caller, write: UnitOfWork) -> Response:
    """Replace examples, and have the model adapted, in one transaction."""

    def correct(session: Session) -> ReplacedAnswer:
        model = catalog.find(session, name, caller.models, lock=True)
        if model.id != recent.id:
            raise NotFound("model_not_found", "There is no such model.")
        replaced = ledger.replace_examples(session, model, batch)
        job = queue.enqueue_adaptation(session, model, write.request_id) if replaced.replaced else None
        metrics.EXAMPLES.labels("replaced").inc(replaced.replaced)
        metrics.count_unseen(name, inputs_of(recent.spec).count_other(batch.x))
        return ReplacedAnswer(**vars(replaced), position=model.head, job=job)

    return write(caller.credential, 202, correct)


@router.get("/{id:path}", response_model=ExampleAnswer, responses=problem_responses(404))
def show_example(name: Name, id: Id, caller: Reader, context: ContextDep) -> ExampleAnswer:
    """One example in force, by the caller's id."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        return of_example(queries.find_example(session, model, id), layout_at(session, model.id, model.head))
