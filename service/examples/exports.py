"""Export of all examples of a model as an Arrow stream or a Parquet file, sent while the ledger is read."""

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
from service.http.auth import Reader
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.table_streams import CONTENT, ResponseFormat, stream
from service.models.endpoints import Name
from service.parsing.inputs import inputs_of
from service.parsing.targets import Targets

router = APIRouter(prefix="/v1/models/{name}/examples/export", tags=["Examples"], route_class=AuthenticatedRoute)

BATCH_ROWS, BATCH_BYTES = 50_000, 8 * 2**20
"""Approximate size of a record batch or row group. Batches of the ledger are far smaller after many removals."""


@router.get(
    "",
    response_class=Response,
    responses={200: {"description": "The examples.", "content": CONTENT}, **problem_responses(404)},
)
def export_examples(name: Name, caller: Reader, context: ContextDep, form: ResponseFormat) -> Response:
    """Export the active examples as of the time of the request, in the order of their positions, with the columns `id`,
    `y`, `weight`, `split` and the features by name, or `x`. The subject is not exported.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        model_id, head, layout = model.id, model.head, layout_at(session, model.id, model.head)
    schema = schema_of(layout.spec)
    rows = read_exported(context.database, model_id, layout, head)
    tables = merge((to_record_batch(chunk, layout.spec) for chunk in rows), schema)
    return stream(tables, schema, form, f"{name}-{head}", {"model": name, "position": str(head)})


def schema_of(spec: Spec) -> pa.Schema:
    """The schema of the record batches, even without examples."""
    inputs, none = inputs_of(spec), np.empty(0)
    nothing = ExportedRows([], np.empty((0, inputs.width), inputs.dtype), none, none, none.astype(np.bool_))
    return to_record_batch(nothing, spec).schema


def to_record_batch(rows: ExportedRows, spec: Spec) -> pa.RecordBatch:
    """Rows in the format in which callers send them."""
    splits = pa.DictionaryArray.from_arrays(pa.array(rows.holdout.astype("int8")), pa.array(["train", "holdout"]))
    own = {
        "id": pa.array(rows.ids, pa.string()),
        "y": Targets(spec["target"]).to_column(rows.y),
        "weight": pa.array(rows.weight),
        "split": splits,
    }
    return pa.RecordBatch.from_pydict({**own, **inputs_of(spec).to_columns(rows.x)})


def merge(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Merge small batches into tables."""
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
