"""Exports contain all active examples, equal the listing, and can be sent again."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from service.examples import exports
from tests.service.bodies import ARROW, CSV, PARQUET
from tests.service.expect import add, listed, refused, rows
from tests.stack import Stack

TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid"]},
        {"name": "region", "type": "category", "values": [1, 2], "other": False},
        {"name": "member", "type": "boolean"},
        {"name": "since", "type": "date"},
    ],
}
VALUES = {
    "age": [None, 0.1, -3, 2.0**40],
    "plan": ["free", "never seen", None, "paid"],
    "region": [2, None, 1, 1],
    "member": [True, None, False],
    "since": ["2024-03-05T14:30:00Z", "0001-01-01", None, "1970-01-01T00:00:01Z", "9999-12-31"],
}
CLASSES = {"kind": "classes", "values": ["cat", "dog", "bird"]}


def read(content: bytes, kind: str) -> pa.Table:
    if kind == PARQUET:
        return pa.parquet.read_table(io.BytesIO(content))
    return pa.ipc.open_stream(content).read_all()


def export(api: httpx.Client, name: str, kind: str = ARROW) -> pa.Table:
    answer = api.get(f"/v1/models/{name}/examples/export", headers={"Accept": kind}).raise_for_status()
    assert answer.headers["content-type"] == kind
    return read(answer.content, kind)


def table_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"e{i}",
            "subject": f"user-{i % 5}",
            "x": {name: values[i % len(values)] for name, values in VALUES.items()},
            "y": CLASSES["values"][i % 3],
            "split": "holdout" if i % 4 == 0 else "train",
            **({"weight": 0.5 + i % 3} if i % 2 else {}),
            **({"time": f"2026-03-0{1 + i % 7}T10:00:00.500000Z", "source": f"load {i % 2}"} if i % 3 else {}),
        }
        for i in range(count)
    ]


OWN = ["id", "y", "weight", "split", "time", "source"]
TABLE_NAMES = [column["name"] for column in TABLE["columns"]]


def as_listed(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of an exported table as the list has them; texts for whole numbers, dates to the second."""
    found = []
    for row in table.to_pylist():
        own = {k: plain(row[k]) for k in OWN if row[k] is not None}
        found.append({**own, "x": {k: plain(row[k]) for k in TABLE_NAMES}})
    return found


def plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        text = value.isoformat().replace("+00:00", "Z")
        return text.removesuffix("T00:00:00Z")
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


def without_position(row: dict[str, Any]) -> dict[str, Any]:
    x = {**row["x"], "region": None if row["x"]["region"] is None else str(row["x"]["region"])}
    return {**{k: v for k, v in row.items() if k != "position"}, "x": x}


@pytest.mark.both_databases
@pytest.mark.parametrize("kind", [ARROW, PARQUET])
def test_an_exported_table_equals_the_listing_and_can_be_sent_again(stack: Stack, api: httpx.Client, kind: str) -> None:
    name = stack.model(input=TABLE, target=CLASSES)
    add(api, name, table_rows(60))
    api.post(f"/v1/models/{name}/removals", json={"ids": ["e3", "e4"]}).raise_for_status()
    other = {name: value for name, value in table_rows(8)[7].items() if name != "id"}
    api.put(f"/v1/models/{name}/examples/e5", json=other).raise_for_status()
    table = export(api, name, kind)
    assert table.column_names == [*OWN, *TABLE_NAMES]
    assert as_listed(table) == [without_position(row) for row in listed(api, name)]
    assert table.schema.metadata[b"position"] == b"%d" % api.get(f"/v1/models/{name}").json()["head"]
    copy = stack.model(input=TABLE, target=CLASSES)
    content = api.get(f"/v1/models/{name}/examples/export", headers={"Accept": kind}).content
    sent = api.post(f"/v1/models/{copy}/examples", content=content, headers={"Content-Type": kind})
    assert sent.json()["accepted"] == 58, sent.text
    assert [without_position(row) for row in listed(api, copy)] == [without_position(row) for row in listed(api, name)]


@pytest.mark.parametrize(
    ("spec", "x", "ys"),
    [
        ({"kind": "vector", "dim": 3}, [0.1, -2, 3e6], {"binary": [0, 1], "number": [0.25, -1e9], "count": [0, 7]}),
        ({"kind": "image", "shape": [1, 2, 2], "dtype": "uint8"}, [[[0, 255], [7, 8]]], {"binary": [1, 0]}),
    ],
)
def test_vectors_and_images_are_lists(
    stack: Stack, api: httpx.Client, spec: Any, x: Any, ys: dict[str, list[float]]
) -> None:
    for target, values in ys.items():
        name = stack.model(input=spec, target={"kind": target})
        add(api, name, [{"id": f"e{i}", "x": x, "y": y} for i, y in enumerate(values)])
        frame = export(api, name).to_pandas()
        flat = pd.Series(x).explode().explode().astype("float32").tolist()
        assert [row.tolist() for row in frame["x"]] == [flat] * len(values)
        assert frame["y"].tolist() == values
        copy = stack.model(input=spec, target={"kind": target})
        content = api.get(f"/v1/models/{name}/examples/export?format=parquet").content
        sent = api.post(f"/v1/models/{copy}/examples", content=content, headers={"Content-Type": PARQUET})
        assert sent.json()["accepted"] == len(values), sent.text
        assert listed(api, copy) == listed(api, name)


@pytest.mark.both_databases
def test_rows_from_before_a_change_of_columns_are_exported_as_they_are_now(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input={"kind": "table", "columns": [{"name": "age", "type": "number"}]}, target=CLASSES)
    add(api, name, [{"id": f"e{i}", "x": {"age": i}, "y": "cat" if i % 2 else "dog"} for i in range(10)])
    columns = [
        {"name": "income", "type": "number", "default": 5},
        {"name": "years", "type": "number", "was": "age"},
    ]
    target = {"kind": "classes", "values": ["bird", "pet"], "merge": {"cat": "pet", "dog": "pet"}}
    change = {"input": {"kind": "table", "columns": columns}, "target": target}
    api.post(f"/v1/models/{name}/changes", json=change).raise_for_status()
    add(api, name, [{"id": "new", "x": {"income": None, "years": 3}, "y": "bird"}])
    frame = export(api, name).to_pandas()
    assert frame["income"].tolist()[:10] == [5] * 10
    assert frame["years"].tolist() == [*range(10), 3]
    assert frame["y"].tolist() == ["pet"] * 10 + ["bird"]
    assert [row["id"] for row in listed(api, name)] == frame["id"].tolist()


def test_a_model_without_examples_exports_its_columns(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(input=TABLE, target=CLASSES)
    for kind in (ARROW, PARQUET):
        table = export(api, name, kind)
        assert (table.num_rows, table.column_names) == (0, [*OWN, *TABLE_NAMES])
    assert api.get(f"/v1/models/{name}/examples/export").headers["content-type"] == ARROW


def test_an_export_requires_the_scope_and_the_model_of_a_listing(stack: Stack, api: httpx.Client) -> None:
    name, other = stack.model(), stack.model()
    with stack.client(stack.key("ingest")) as ingester:
        refused(ingester.get(f"/v1/models/{name}/examples/export"), 403, "scope_missing")
    with stack.client(stack.key("read", models=[name])) as reader:
        assert reader.get(f"/v1/models/{name}/examples/export").status_code == 200
        refused(reader.get(f"/v1/models/{other}/examples/export"), 404, "model_not_found")
    refused(api.get(f"/v1/models/{name}/examples/export?format=csv"), 422, "request_invalid")


def test_memory_holds_a_chunk_at_a_time(stack: Stack, api: httpx.Client) -> None:
    """Many record batches, each of them sent when it is full."""
    name, count = stack.model(), 3 * exports.BATCH_ROWS + 7
    for start in range(0, count, 50_000):
        ids = range(start, min(start + 50_000, count))
        body = "id,y,a,b\n" + "".join(f"e{i},{i % 2},{i % 1000},1\n" for i in ids)
        sent = api.post(f"/v1/models/{name}/examples", content=body, headers={"Content-Type": CSV})
        assert sent.status_code == 201, sent.text
    with api.stream("GET", f"/v1/models/{name}/examples/export") as answer:
        assert "content-length" not in answer.headers
        sizes = [len(piece) for piece in answer.iter_raw()]
    assert max(sizes) < exports.BATCH_BYTES
    found = api.get(f"/v1/models/{name}/examples/export?format=parquet").content
    file = pa.parquet.ParquetFile(io.BytesIO(found))
    assert file.metadata.num_row_groups > 1
    assert file.read(["id"]).column("id").to_pylist() == [f"e{i}" for i in range(count)]


def test_an_export_is_a_snapshot_of_the_time_of_the_request(stack: Stack, api: httpx.Client) -> None:
    name = stack.model()
    add(api, name, rows(4))
    before = export(api, name).schema.metadata[b"position"]
    add(api, name, rows(2, "f"))
    assert (before, export(api, name).schema.metadata[b"position"]) == (b"4", b"6")
