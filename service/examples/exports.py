"""Export of all examples of a model as an Arrow stream or a Parquet file, sent while the ledger is read."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from fastapi import APIRouter
from starlette.responses import Response

from core.audit.entries import About
from core.kprior.model.spec import Spec
from core.ledger.exports import ExportedRows, read_exported
from core.ledger.spec_history import has_soft_labels, layout_at
from core.models import catalog
from core.tables.audit import Action
from service.context import ContextDep
from service.http.auth import Reader
from service.http.problems import problem_responses
from service.http.request_audit import AuditorDep
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
def export_examples(
    name: Name, caller: Reader, context: ContextDep, auditor: AuditorDep, form: ResponseFormat
) -> Response:
    """Export the active examples as of the time of the request, in the order of their positions, with the columns `id`,
    `y`, `weight`, `split`, `time`, `source` and the features by name, or `x`. The export can be sent again as examples.
    It has no subjects, of which only keyed hashes are stored.
    """
    with context.database.read() as session:
        model = catalog.find(session, name, caller.models)
        model_id, head, layout = model.id, model.head, layout_at(session, model.id, model.head)
        count, soft = model.train_count + model.holdout_count, has_soft_labels(session, model)
    auditor.record_read(
        caller, Action.EXAMPLES_EXPORTED, About(name, position=head, counts={"examples": count} if count else {})
    )
    schema = schema_of(layout.spec, soft)
    rows = read_exported(context.database, model_id, layout, head)
    tables = merge((to_record_batch(chunk, layout.spec, soft) for chunk in rows), schema)
    return stream(tables, schema, form, f"{name}-{head}", {"model": name, "position": str(head)})


def schema_of(spec: Spec, soft: bool) -> pa.Schema:
    """The schema of the record batches, even without examples."""
    inputs, none = inputs_of(spec), np.empty(0)
    x = np.empty((0, inputs.width), inputs.dtype)
    nothing = ExportedRows([], x, none, none, none.astype(np.bool_), [], [], None)
    return to_record_batch(nothing, spec, soft).schema


def to_record_batch(rows: ExportedRows, spec: Spec, soft: bool) -> pa.RecordBatch:
    """Rows in the format in which callers send them; `soft`: whether labels of a binary target may be soft."""
    splits = pa.DictionaryArray.from_arrays(pa.array(rows.holdout.astype("int8")), pa.array(["train", "holdout"]))
    own = {
        "id": pa.array(rows.ids, pa.string()),
        "y": Targets(spec["target"]).to_column(rows.y, soft),
        "weight": pa.array(rows.weight),
        "split": splits,
        "time": pa.array(rows.times, pa.timestamp("us", "UTC")),
        "source": pa.array(rows.sources, pa.string()),
    }
    return pa.RecordBatch.from_pydict({**own, **inputs_of(spec).to_columns(rows.x, rows.unseen)})


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
