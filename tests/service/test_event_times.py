"""Event times and sources of examples: in every format, in lists, and in errors."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.service.expect import refused
from tests.stack import Stack

NOON = "2026-03-01T12:00:00Z"
ROWS = [
    {"id": "a", "x": [1.0, 2.0], "y": 1, "time": "2026-03-01T13:00:00+01:00", "source": "crm"},
    {"id": "b", "x": [1.0, 3.0], "y": 0, "time": None, "source": None},
    {"id": "c", "x": [1.0, 4.0], "y": 0, "source": "web"},
]
CSV = f"id,x0,x1,y,time,source\na,1,2,1,{NOON},crm\nb,1,3,0,,\nc,1,4,0,,web\n"


def table() -> pa.Table:
    times = pa.array([datetime(2026, 3, 1, 12, tzinfo=UTC), None, None], pa.timestamp("ms", "UTC"))
    x = pa.array([row["x"] for row in ROWS], pa.list_(pa.float32(), 2))
    return pa.table({"id": ["a", "b", "c"], "x": x, "y": [1, 0, 0], "time": times, "source": ["crm", None, "web"]})


def arrow() -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table())
    return sink.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(table(), sink)
    return sink.getvalue()


FORMATS = {
    "application/json": lambda: json.dumps({"examples": ROWS}).encode(),
    "application/x-ndjson": lambda: "\n".join(json.dumps(row) for row in ROWS).encode(),
    "text/csv": lambda: CSV.replace("x0,x1", "x[0],x[1]").encode(),
    "application/vnd.apache.arrow.stream": arrow,
    "application/vnd.apache.parquet": parquet,
}


def listed(api: httpx.Client, name: str, query: str = "") -> list[tuple[str, str | None, str | None]]:
    items = api.get(f"/v1/models/{name}/examples{query}").raise_for_status().json()["items"]
    return [(item["id"], item.get("time"), item.get("source")) for item in items]


@pytest.mark.both_databases
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_takes_times_and_sources(stack: Stack, api: httpx.Client, kind: str) -> None:
    if kind == "text/csv":
        columns = [{"name": "p", "type": "number"}, {"name": "q", "type": "number"}]
        name = stack.model(input={"kind": "table", "columns": columns})
        body = CSV.replace("x0,x1", "p,q").encode()
    else:
        name, body = stack.model(), FORMATS[kind]()
    response = api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": kind})
    assert response.status_code == 201, response.text
    assert listed(api, name) == [("a", NOON, "crm"), ("b", None, None), ("c", None, "web")]


def test_a_source_can_be_given_for_the_whole_request(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    api.post(f"/v1/models/{name}/examples?source=nightly", json={"examples": ROWS}).raise_for_status()
    assert [source for _, _, source in listed(api, name)] == ["crm", "nightly", "web"]
    assert listed(api, name, "?source=nightly") == [("b", None, "nightly")]


def test_lists_can_be_restricted_to_recent_examples(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    api.post(f"/v1/models/{name}/examples", json={"examples": ROWS}).raise_for_status()
    assert [id for id, _, _ in listed(api, name, "?since=2026-03-01T11:59:59Z")] == ["a", "b", "c"]
    assert [id for id, _, _ in listed(api, name, "?since=2026-03-01T12:00:01Z")] == ["b", "c"]  # they arrived today


@pytest.mark.parametrize("time", ["yesterday", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_time_that_cannot_be_is_refused_with_its_place(stack: Stack, api: httpx.Client, time: str) -> None:
    rows = [*ROWS[:2], {**ROWS[2], "time": time}]
    response = api.post(f"/v1/models/{stack.model()}/examples", json={"examples": rows})
    problem = refused(response, 422, "time_invalid")
    assert problem["errors"][0]["loc"] == ["examples", 2, "time"]


def test_a_source_that_is_too_long_is_refused(stack: Stack, api: httpx.Client) -> None:
    rows = [{**ROWS[0], "source": "s" * 201}]
    refused(api.post(f"/v1/models/{stack.model()}/examples", json={"examples": rows}), 422, "source_invalid")
