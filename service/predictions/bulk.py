"""Bulk predictions: an Arrow or Parquet table in, a table out."""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Request
from numpy.typing import NDArray
from starlette.responses import Response

from core.errors import Unsupported
from core.kprior.data.label_sets import to_codes
from core.kprior.model.spec import PredictorSpec, gives_scores, values_of
from core.kprior.model.uncertainty import Uncertainty
from core.versions.queries import MAX_NUMBER
from service import prometheus_counters
from service.context import ContextDep
from service.examples.readers import InputReader
from service.examples.tables import open_arrow, open_parquet
from service.http.auth import Reader
from service.http.body_threads import run_for_body
from service.http.problems import problem_responses
from service.http.routes import AuthenticatedRoute
from service.http.table_streams import CONTENT, MEDIA_TYPES, ResponseFormat, stream
from service.models.endpoints import Name
from service.parsing.columns import text as text_column
from service.parsing.targets import Targets
from service.predictions.predict import require_posterior
from service.predictions.version_cache import CachedVersion

router = APIRouter(prefix="/v1/models/{name}/predictions/bulk", tags=["Predictions"], route_class=AuthenticatedRoute)

READERS = {MEDIA_TYPES["arrow"]: open_arrow, MEDIA_TYPES["parquet"]: open_parquet}
NUMBERS_PER_BATCH = 100_000
"""Approximate number of predicted values in one record batch."""


@router.post(
    "",
    response_class=Response,
    responses={200: {"description": "The predictions.", "content": CONTENT}, **problem_responses(404, 409)},
    openapi_extra={"requestBody": {"required": True, "content": CONTENT}},
)
async def predict_table(
    request: Request,
    name: Name,
    caller: Reader,
    context: ContextDep,
    form: ResponseFormat,
    version: Annotated[
        int | None, Query(ge=1, le=MAX_NUMBER, description="Version number. Default: the champion.")
    ] = None,
    uncertainty: Annotated[bool, Query(description="Include `std` and `interval` in the response.")] = False,
) -> Response:
    """Predict every row of an Arrow stream or a Parquet file, with the champion or another version.

    The table has one column per feature, or a column `x`; the columns `y`, `subject`, `weight` and `split` are ignored.
    The response has the column `id` if the request has it, and `mean` (with `class` for binary targets) or `class` (or
    `labels`) and `probabilities`. With `uncertainty` it also has `std` and `interval`, with one field per class for
    targets with classes or labels. A row whose output is not a finite number has nulls.
    """
    loaded: CachedVersion = await request.app.state.versions.get(name, version, caller)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in READERS:
        raise Unsupported("content_type_unsupported", f"Unsupported Content-Type. Use one of: {', '.join(READERS)}.")
    body, settings = await request.body(), context.settings
    reader = InputReader(loaded.model.spec, settings.max_batch, settings.max_body_bytes)

    def read() -> tuple[pa.StringArray | None, NDArray[Any]]:
        table = READERS[kind](reader, body)
        reader.check_size(table.num_rows)
        ids = text_column(table.column("id"), reader.field, "id") if "id" in table.column_names else None
        x = loaded.inputs.from_columns(table, reader.field)
        if uncertainty:
            require_posterior(loaded)
        return ids, x

    ids, x = await run_for_body(body, read)
    about = {"model": name, "version": str(loaded.model.number)}
    none = np.empty((0, loaded.model.outputs))
    unsure = Uncertainty(none, none, none) if uncertainty else None
    schema = to_table(loaded, none, unsure, None if ids is None else ids[:0]).schema
    return stream(predict_pieces(name, loaded, x, ids, uncertainty), schema, form, f"{name}-predictions", about)


def predict_pieces(
    name: str, loaded: CachedVersion, x: NDArray[Any], ids: pa.StringArray | None, uncertainty: bool
) -> Iterator[pa.Table]:
    rows = max(1, NUMBERS_PER_BATCH // loaded.model.outputs)
    prometheus_counters.count_unseen(name, loaded.inputs.count_other(x))
    for start in range(0, len(x), rows):
        piece = x[start : start + rows]
        prometheus_counters.PREDICTIONS.inc(len(piece))
        mean, unsure = loaded.model.assess(piece) if uncertainty else (loaded.model.predict_means(piece), None)
        yield to_table(loaded, mean, unsure, None if ids is None else ids[start : start + rows])


def to_table(
    loaded: CachedVersion, mean: NDArray[Any], unsure: Uncertainty | None, ids: pa.StringArray | None
) -> pa.Table:
    """Predicted means (n, K) as a table with the columns that `to_predictions` names."""
    columns = to_columns(loaded.model.spec, mean.astype(np.float64), loaded.model.threshold)
    if unsure is not None:
        columns |= to_uncertainty(loaded.model.spec, unsure)
    return pa.table(columns if ids is None else {"id": ids, **columns})


def to_columns(spec: PredictorSpec, mean: NDArray[np.float64], threshold: float = 0.5) -> dict[str, pa.Array]:
    """
    >>> to_columns({"target": {"kind": "binary"}}, np.array([[0.25], [np.nan]]))["class"].to_pylist()
    [0, None]
    """
    target = spec["target"]
    bad = ~np.isfinite(mean).all(1)
    if target["kind"] == "classes" or target["kind"] == "labels":
        each = [pa.array(mean[:, k], mask=bad) for k in range(mean.shape[1])]
        shares = pa.StructArray.from_arrays(each, [str(value) for value in values_of(target)], mask=pa.array(bad))
        if target["kind"] == "labels":
            named = Targets(target).to_column(to_codes(mean > threshold))
            return {"labels": pc.if_else(pa.array(bad), None, named), "probabilities": shares}
        best = Targets(target).to_column(np.where(bad, 0, mean.argmax(1) if len(mean) else 0).astype(np.float64))
        return {"class": pa.array(best, mask=bad) if bad.any() else best, "probabilities": shares}
    scores = gives_scores(spec)
    means = {"score" if scores else "mean": pa.array(mean[:, 0], mask=bad)}
    if target["kind"] == "binary":
        means["class"] = pa.array((mean[:, 0] > (0.0 if scores else threshold)).astype(np.int8), mask=bad)
    return means


def to_uncertainty(spec: PredictorSpec, unsure: Uncertainty) -> dict[str, pa.Array]:
    """
    >>> unsure = Uncertainty(np.array([[0.1], [np.nan]]), np.array([[0.2], [0.0]]), np.array([[0.6], [1.0]]))
    >>> {name: column.to_pylist() for name, column in to_uncertainty({"target": {"kind": "binary"}}, unsure).items()}
    {'std': [0.1, None], 'interval': [[0.2, 0.6], None]}
    """
    target, bad = spec["target"], ~np.isfinite(np.concatenate(unsure, 1)).all(1)
    none = pa.array(bad)
    std, low, high = (array.astype(np.float64) for array in unsure)
    stds = [pa.array(std[:, k], mask=bad) for k in range(std.shape[1])]
    ends = [np.stack([low[:, k], high[:, k]], 1).ravel() for k in range(std.shape[1])]
    intervals = [pa.FixedSizeListArray.from_arrays(pa.array(each), 2, mask=none) for each in ends]
    if target["kind"] != "classes" and target["kind"] != "labels":
        return {"std": stds[0], "interval": intervals[0]}
    names = [str(value) for value in values_of(target)]
    both = {"std": stds, "interval": intervals}
    return {name: pa.StructArray.from_arrays(each, names, mask=none) for name, each in both.items()}
