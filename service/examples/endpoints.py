"""Endpoints of examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Request
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from core.errors import NotFound
from core.ledger import append, storage
from core.ledger.append import Added, Head
from core.ledger.batch import Batch
from core.ledger.tables import Example
from core.models import catalog
from service import metrics
from service.auth import Caller, Guarded, Ingester, Reader
from service.context import Context, Shared
from service.examples import formats
from service.examples.schemas import BODY, AddedAnswer, ExampleAnswer
from service.inputs import inputs_of
from service.models.endpoints import Name
from service.pages import After, Limit, Page, number, page_of
from service.problems import documented
from service.targets import Targets
from service.writing import Write, Writing

router = APIRouter(prefix="/v1/models/{name}/examples", tags=["Examples"], route_class=Guarded)


@router.post(
    "", status_code=201, response_model=AddedAnswer, responses=documented(404, 409, 413, 415), openapi_extra=BODY
)
async def add_examples(request: Request, name: Name, caller: Ingester, context: Shared, write: Write) -> Response:
    """Add a batch of examples: JSON, NDJSON, CSV (header; columns id, subject, y, split and the features), an Arrow
    stream or Parquet (the same columns, or `x` as a list).

    The same id with the same content again is counted under `duplicates`; with other content it is a conflict, and
    nothing of the batch is stored. Without a `split` the id decides, by its hash and the policy's holdout share.
    """
    kind, body = request.headers.get("content-type", ""), await request.body()
    return await run_in_threadpool(add, name, kind, body, caller, context, write)


def add(name: str, kind: str, body: bytes, caller: Caller, context: Context, write: Writing) -> Response:
    model_id, spec = known(name, caller, context)
    try:
        return added(model_id, spec, kind, body, caller, context, write)
    except NotFound:
        # perhaps deleted and made anew by another process, with another schema
        context.models.clear()
        again, spec = known(name, caller, context)
        if again == model_id:
            raise
        return added(again, spec, kind, body, caller, context, write)


def added(
    model_id: int, spec: dict[str, Any], kind: str, body: bytes, caller: Caller, context: Context, write: Writing
) -> Response:
    settings = context.settings
    # parsed before the lock is taken: other writers of the model need not wait for that
    reader = formats.Reader(spec, settings.max_batch, settings.max_body_bytes, settings.secret)
    batch = reader.read(kind, body)
    storage.prepare(batch, context.database.sqlite)

    def store(session: Session, adding: Callable[[Session, Head, Batch], Added]) -> AddedAnswer:
        stored = adding(session, append.lock(session, model_id), batch)
        metrics.EXAMPLES.labels("accepted").inc(stored.accepted)
        metrics.EXAMPLES.labels("duplicate").inc(stored.duplicates)
        return AddedAnswer(**vars(stored))

    if len(set(batch.ids)) == len(batch):
        with suppress(IntegrityError):
            return write(caller.credential, 201, lambda session: store(session, append.add_new))
    return write(caller.credential, 201, lambda session: store(session, append.add))


def known(name: str, caller: Caller, context: Context) -> tuple[int, dict[str, Any]]:
    """A model's number and its spec, of which input and target never change."""
    found: tuple[int, dict[str, Any]] | None = context.models.get(name)
    if found is None or (caller.models is not None and name not in caller.models):
        with context.database.read() as session:
            model = catalog.find(session, name, caller.models)
            found = model.id, model.spec
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
    name: Name, caller: Reader, context: Shared, limit: Limit = 100, after: After = None
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
    name: Name, id: Annotated[str, Path(max_length=200, examples=["a1"])], caller: Reader, context: Shared
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
