"""All examples of a model as one Arrow stream or Parquet file, written while the ledger is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from fastapi import APIRouter
from starlette.responses import Response

from core.kprior.model.spec import Spec
from core.ledger.exports import ExportedRows, read_exported
from core.ledger.specs import layout_at
from core.models import catalog
from service.context import ContextDep
from service.http.auth import AuthenticatedRoute, Reader
from service.http.problems import problem_responses
from service.http.table_streams import CONTENT, AnswerFormat, stream
from service.models.endpoints import Name
from service.parsing.inputs import inputs_of
from service.parsing.targets import Targets

router = APIRouter(prefix="/v1/models/{name}/examples/export", tags=["Examples"], route_class=AuthenticatedRoute)

BATCH_ROWS, BATCH_BYTES = 50_000, 8 * 2**20
"""Of a record batch, and so of a row group, about: those of the ledger can be far smaller, where much was removed."""


@router.get(
    "",
    response_class=Response,
    responses={200: {"description": "The examples.", "content": CONTENT}, **problem_responses(404)},
)
def export_examples(name: Name, caller: Reader, context: ContextDep, form: AnswerFormat) -> Response:
    """All examples in force, in the order they came, with the columns that a batch of them has: `id`, `y`, `weight`,
    `split`, and the features by their names, or `x`; never the subject. They are those of the moment it was asked.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        model_id, head, layout = model.id, model.head, layout_at(session, model.id, model.head)
    schema = schema_of(layout.spec)
    rows = read_exported(context.database, model_id, layout, head)
    tables = merge((to_record_batch(some, layout.spec) for some in rows), schema)
    return stream(tables, schema, form, f"{name}-{head}", {"model": name, "position": str(head)})


def schema_of(spec: Spec) -> pa.Schema:
    """Of the record batches, also where there is no example."""
    inputs, none = inputs_of(spec), np.empty(0)
    nothing = ExportedRows([], np.empty((0, inputs.width), inputs.dtype), none, none, none.astype(np.bool_))
    return to_record_batch(nothing, spec).schema


def to_record_batch(rows: ExportedRows, spec: Spec) -> pa.RecordBatch:
    """Rows as callers would send them."""
    splits = pa.DictionaryArray.from_arrays(pa.array(rows.holdout.astype("int8")), pa.array(["train", "holdout"]))
    own = {
        "id": pa.array(rows.ids, pa.string()),
        "y": Targets(spec["target"]).to_column(rows.y),
        "weight": pa.array(rows.weight),
        "split": splits,
    }
    return pa.RecordBatch.from_pydict({**own, **inputs_of(spec).to_columns(rows.x)})


def merge(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches, several small ones as one table."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.Table.from_batches(waiting, schema).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema).combine_chunks()
