"""Endpoints of examples."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.responses import Response

from core.errors import NotFound
from core.ledger import append, bulk
from core.models import catalog
from core.tables.ledger import Example
from service import metrics
from service.context import Context, ContextDep, Known
from service.examples import formats
from service.examples.reader import Reader as BodyReader
from service.examples.schemas import BODY, AddedAnswer, ExampleAnswer
from service.http.auth import AuthenticatedRoute, Caller, Ingester, Reader
from service.http.pages import After, Limit, Page, number, page_of
from service.http.problems import documented
from service.http.unit_of_work import Write, Writing
from service.models.endpoints import Name
from service.parsing.inputs import inputs_of
from service.parsing.targets import Targets
from service.threads import work_on

router = APIRouter(prefix="/v1/models/{name}/examples", tags=["Examples"], route_class=AuthenticatedRoute)


@router.post(
    "", status_code=201, response_model=AddedAnswer, responses=documented(404, 409, 413, 415), openapi_extra=BODY
)
async def add_examples(request: Request, name: Name, caller: Ingester, context: ContextDep, write: Write) -> Response:
    """Add a batch of examples: JSON, NDJSON, CSV (header; columns id, subject, y, split and the features), an Arrow
    stream or Parquet (the same columns, or `x` as a list).

    The same id with the same content again is counted under `duplicates`; with other content it is a conflict, and
    nothing of the batch is stored. Without a `split` the id decides, by its hash and the policy's holdout share.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    return await work_on(body, lambda: add(name, kind, body, caller, context, write))


def add(name: str, kind: str, body: bytes, caller: Caller, context: Context, write: Writing) -> Response:
    model = known(name, caller, context)
    try:
        return added(model, kind, body, caller, context, write)
    except NotFound:
        # perhaps deleted and made anew by another process, with another schema
        context.models.clear()
        again = known(name, caller, context)
        if again.id == model.id:
            raise
        return added(again, kind, body, caller, context, write)


def added(model: Known, kind: str, body: bytes, caller: Caller, context: Context, write: Writing) -> Response:
    settings = context.settings
    # parsed before the lock is taken: other writers of the model need not wait for that
    reader = BodyReader(
        model.spec, settings.max_batch, settings.max_body_bytes, settings.secret, settings.caseless_subjects
    )
    batch = formats.read(reader, kind, body)
    bulk.prepare(batch, context.database.sqlite)

    def store(session: Session, new: bool) -> AddedAnswer:
        stored = append.add_new(session, model.id, model.share, batch) if new else None
        return told(stored or append.add(session, append.lock(session, model.id), batch))

    with suppress(IntegrityError):
        if write.key is not None:
            return write(caller.credential, 201, lambda session: store(session, new=True))
        if stored := append.add_alone(context.database, model.id, model.share, batch):
            return Response(told(stored).model_dump_json(), 201, media_type="application/json")
    return write(caller.credential, 201, lambda session: store(session, new=False))


def told(stored: append.Added) -> AddedAnswer:
    metrics.EXAMPLES.labels("accepted").inc(stored.accepted)
    metrics.EXAMPLES.labels("duplicate").inc(stored.duplicates)
    return AddedAnswer(**vars(stored))


def known(name: str, caller: Caller, context: Context) -> Known:
    """A model as it was a moment ago."""
    found = context.models.get(name)
    if found is None or (caller.models is not None and name not in caller.models):
        with context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            found = Known(model.id, model.spec, model.policy["holdout"])
        context.models.put(name, found)
    return found


def shown(row: Any, spec: dict[str, Any]) -> ExampleAnswer:
    inputs = inputs_of(spec)
    return ExampleAnswer(
        id=row.id,
        x=inputs.to_json(np.frombuffer(row.x, inputs.dtype)),
        y=Targets(spec["target"]).to_json(row.y),
        split="holdout" if row.holdout else "train",
        position=row.position,
    )


PAGE_NUMBERS = 200_000
"""Numbers on one page of examples: a page of images would else be gigabytes."""
COLUMNS = (Example.id, Example.x, Example.y, Example.holdout, Example.position)


@router.get("", response_model=Page[ExampleAnswer], responses=documented(404))
def list_examples(
    name: Name, caller: Reader, context: ContextDep, limit: Limit = 100, after: After = None
) -> Page[ExampleAnswer]:
    """The examples in force, in the order they came. A page of large ones is shorter than `limit`."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        limit = max(1, min(limit, PAGE_NUMBERS // inputs_of(model.spec).width))
        in_force = (Example.model_id == model.id, Example.removed.is_(None), Example.position > number(after, 0))
        rows = session.execute(select(*COLUMNS).where(*in_force).order_by(Example.position).limit(limit + 1)).all()
        return page_of(rows, limit, lambda row: shown(row, model.spec), lambda row: row.position)


@router.get("/{id:path}", response_model=ExampleAnswer, responses=documented(404))
def show_example(
    name: Name, id: Annotated[str, Path(max_length=200, examples=["a1"])], caller: Reader, context: ContextDep
) -> ExampleAnswer:
    """One example in force, by the caller's id."""
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        # text that cannot be an id is not asked for: PostgreSQL would refuse some of it
        asked = (Example.model_id == model.id, Example.removed.is_(None), Example.id == id)
        row = session.execute(select(*COLUMNS).where(*asked)).first() if id.isprintable() else None
        if row is None:
            raise NotFound("example_not_found", "There is no such example in force.")
        return shown(row, model.spec)
