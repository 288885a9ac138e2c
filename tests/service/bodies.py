"""The same examples as a body of each content type."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

Rows = list[dict[str, Any]]

NDJSON = "application/x-ndjson"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"


def as_json(rows: Rows) -> bytes:
    return json.dumps({"examples": rows}).encode()


def as_ndjson(rows: Rows) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def features(x: Any) -> dict[str, Any]:
    """An input as named columns."""
    return dict(x) if isinstance(x, dict) else {f"f{i}": v for i, v in enumerate(np.ravel(x).tolist())}


def as_csv(rows: Rows) -> bytes:
    flat = [{**{k: v for k, v in row.items() if k != "x"}, **features(row["x"])} for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, sorted(set().union(*flat), key=list({k: 0 for row in flat for k in row}).index))
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode()


def table(rows: Rows) -> pa.Table:
    columns: dict[str, Any] = {
        name: pa.array([None if (v := row.get(name)) is None else v if name == "y" else str(v) for row in rows])
        for name in ("id", "subject", "split")
        if any(name in row for row in rows)
    }
    if any("weight" in row for row in rows):
        columns["weight"] = pa.array([row.get("weight") for row in rows])
    ys = [row["y"] for row in rows]
    columns["y"] = pa.array(ys if len({type(y) for y in ys}) == 1 else [str(y) for y in ys])
    if isinstance(rows[0]["x"], dict):
        for name in rows[0]["x"]:
            columns[name] = pa.array([row["x"][name] for row in rows])
    else:
        columns["x"] = pa.array([np.ravel(row["x"]).tolist() for row in rows])
    return pa.table(columns)


def stream(made: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, made.schema, **options) as writer:
        writer.write_table(made)
    return sink.getvalue()


def file(made: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(made, sink, **options)
    return sink.getvalue()


BODIES: dict[str, Callable[[Rows], bytes]] = {
    "application/json": as_json,
    NDJSON: as_ndjson,
    CSV: as_csv,
    ARROW: lambda rows: stream(table(rows)),
    PARQUET: lambda rows: file(table(rows)),
}
