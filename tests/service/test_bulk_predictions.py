"""Bulk predictions equal those in JSON."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from service.predictions.bulk import NUMBERS_PER_BATCH
from tests.service.bodies import ARROW, CSV, PARQUET, file, stream
from tests.service.conftest import SMALL_BATCH
from tests.service.expect import add, location, refused, rows
from tests.stack import Stack

WRITERS = {ARROW: stream, PARQUET: file}
TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid"]},
    ],
}
TARGETS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "binary": ({"kind": "binary"}, [0, 1, 1]),
    "classes": ({"kind": "classes", "values": ["cat", "dog", "bird"]}, ["cat", "dog", "bird"]),
    "numbers as classes": ({"kind": "classes", "values": [3, 5]}, [3, 5, 3]),
    "number": ({"kind": "number"}, [0.5, -1, 2]),
    "count": ({"kind": "count"}, [0, 3, 1]),
}


def ask(api: httpx.Client, name: str, table: pa.Table, kind: str = ARROW, **query: Any) -> httpx.Response:
    headers = {"Content-Type": kind, "Accept": kind}
    return api.post(f"/v1/models/{name}/predictions/bulk", content=WRITERS[kind](table), headers=headers, params=query)


def read(answer: httpx.Response) -> pa.Table:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == PARQUET:
        return pa.parquet.read_table(io.BytesIO(answer.content))
    return pa.ipc.open_stream(answer.content).read_all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_is_predicted_as_its_rows_are(stack: Stack, api: httpx.Client, target: str, kind: str) -> None:
    described, ys = TARGETS[target]
    name = stack.model(input=TABLE, target=described)
    xs = [{"age": None if i == 7 else i, "plan": ["free", "paid", None, "new"][i % 4]} for i in range(30)]
    add(api, name, [{"id": f"e{i}", "x": x, "y": ys[i % 3], "split": "train"} for i, x in enumerate(xs)])
    version = stack.train(name)
    asked = api.post(f"/v1/models/{name}/predictions", json={"inputs": xs}).json()
    # columns of examples are passed over, but for the id
    table = pa.Table.from_pylist([{**x, "id": f"r{i}", "y": "?"} for i, x in enumerate(xs)])
    found = read(ask(api, name, table, kind))
    assert found.schema.metadata[b"version"] == b"%d" % version
    assert found.to_pylist() == [{"id": f"r{i}", **output} for i, output in enumerate(asked["outputs"])]
    named = read(ask(api, name, table.drop_columns(["id", "y"]), kind, version=version))
    assert named.to_pylist() == asked["outputs"]
    asked = api.post(f"/v1/models/{name}/predictions", json={"inputs": xs, "uncertainty": True}).json()
    assert read(ask(api, name, table, kind, uncertainty=True)).drop_columns("id").to_pylist() == asked["outputs"]


def test_many_rows_are_answered_piece_by_piece(stack: Stack, api: httpx.Client) -> None:
    """More than one record batch, as a stream."""
    name = stack.model(target={"kind": "classes", "values": list(range(60))})
    add(api, name, [{**row, "y": i % 60} for i, row in enumerate(rows(120))])
    stack.train(name)
    count = NUMBERS_PER_BATCH // 60 * 2 + 5
    x = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)})
    answer = ask(api, name, table)
    assert "content-length" not in answer.headers
    found = pa.ipc.open_stream(answer.content)
    pieces = list(found)
    assert len(pieces) == 3
    few = [0, count // 2, count - 1]
    wanted = api.post(f"/v1/models/{name}/predictions", json={"inputs": x[few].tolist()}).json()["outputs"]
    got = pa.Table.from_batches(pieces).take(few).to_pylist()
    assert [row["class"] for row in got] == [row["class"] for row in wanted]
    for one, other in zip(got, wanted, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], rel=1e-9)


def test_predictions_that_are_not_finite_are_null(stack: Stack, api: httpx.Client) -> None:
    name = stack.model(target={"kind": "count"})
    add(api, name, [{"id": f"e{i}", "x": [i, 0], "y": 2**i, "split": "train"} for i in range(10)])
    stack.train(name)
    found = read(ask(api, name, pa.table({"x": [[1.0, 0.0], [3e38, 0.0]]}))).to_pylist()
    assert found[0]["mean"] > 0
    assert found[1] == {"mean": None}


def test_errors_are_reported_before_the_stream_starts(stack: Stack, api: httpx.Client, small: Stack) -> None:
    name = stack.model(input=TABLE)
    good = pa.table({"age": [1, 2], "plan": ["free", "paid"]})
    refused(ask(api, name, good), 409, "champion_missing")
    add(api, name, [{"id": f"e{i}", "x": {"age": i, "plan": "free"}, "y": i % 2, "split": "train"} for i in range(9)])
    stack.train(name)
    refused(ask(api, name, good, version=9), 404, "version_not_found")
    refused(ask(api, name, good.drop_columns(["plan"])), 422, "example_shape_mismatch")
    bad = refused(ask(api, name, pa.table({"age": [1.0, np.inf], "plan": ["free", "paid"]})), 422, "number_not_finite")
    assert location(bad)[:2] == ["inputs", 1]
    refused(ask(api, name, good.append_column("other", pa.array([1, 2]))), 422, "example_invalid")
    refused(ask(api, name, good.slice(0, 0)), 422, "batch_empty")
    where = f"/v1/models/{name}/predictions/bulk"
    for kind, status, code in ((CSV, 415, "content_type_unsupported"), (ARROW, 400, "body_malformed")):
        refused(api.post(where, content=b"age,plan\n1,free\n", headers={"Content-Type": kind}), status, code)
    with stack.client(stack.key("ingest")) as ingester:
        refused(ask(ingester, name, good), 403, "scope_missing")
    few = small.model()
    with small.client() as limited:
        for start in range(0, 10, SMALL_BATCH):
            add(limited, few, rows(10)[start : start + SMALL_BATCH])
        small.train(few)
        fits = pa.table({"x": [[1.0, 2.0]] * SMALL_BATCH})
        assert read(ask(limited, few, fits)).num_rows == SMALL_BATCH
        refused(ask(limited, few, pa.table({"x": [[1.0, 2.0]] * (SMALL_BATCH + 1)})), 413, "batch_too_large")
