"""Amend in the ingest benchmark: examples over HTTP in each format, and a pass over the ledger."""

from __future__ import annotations

import os
from typing import Any

import orjson
import pyarrow as pa

from amend import Client
from bench.baselines import FEATURES, Batch
from bench.wire import Connection, Service, request

CONTENT_TYPES = {
    "Arrow": "application/vnd.apache.arrow.stream",
    "NDJSON": "application/x-ndjson",
    "JSON": "application/json",
}


MODEL = "all"
"""Name of the model that all formats write to. With several models, the rows of the last one would be faster to add,
because they are at the end of the index.
"""


class ServiceWriter:
    """Sends examples to the running service."""

    def __init__(self, service: Service, name: str) -> None:
        self.name, self.service = name, service

    def payload(self, batch: Batch) -> bytes:
        path = f"/v1/models/{MODEL}/examples"
        return request(path, encode(batch, self.name), CONTENT_TYPES[self.name], self.service.key)

    def connect(self) -> Connection:
        return Connection(self.service.port)

    def write(self, connection: Connection, payload: bytes) -> None:
        answer = orjson.loads(connection.send(payload))
        assert answer["duplicates"] == 0, answer
        assert answer["accepted"] > 0, answer


class ClientWriter:
    """Calls ``Client.add_examples`` with an Arrow table; the time includes encoding and httpx."""

    name = "Python client"

    def __init__(self, service: Service) -> None:
        self.service = service

    def payload(self, batch: Batch) -> pa.Table:
        return pa.Table.from_batches([to_arrow(batch)])

    def connect(self) -> Client:
        return Client(f"http://127.0.0.1:{self.service.port}", self.service.key)

    def write(self, client: Client, table: pa.Table) -> None:
        added = client.add_examples(MODEL, table)
        assert (added.accepted, added.duplicates) == (table.num_rows, 0), added


class LedgerReader:
    """Reads the ledger with the pass that training and certificates use."""

    name = "Amend's pass, tensors"

    def __init__(self, service: Service, model: str) -> None:
        from core.database import Database
        from core.ledger.passes import read_in_force
        from core.models import catalog
        from core.settings import Settings

        os.environ.update(service.environment)
        self.database = Database(Settings())
        with self.database.read() as session:
            found = catalog.find(session, model, None)
            self.data = read_in_force(self.database, found.id, found.spec, found.head)

    def read(self) -> int:
        return sum(len(part) for part in self.data)


def vector_model(name: str, holdout: float = 0.1) -> dict[str, Any]:
    return {
        "name": name,
        "input": {"kind": "vector", "dim": FEATURES},
        "target": {"kind": "binary"},
        "policy": {"holdout": holdout},
    }


def to_arrow(batch: Batch) -> pa.RecordBatch:
    x = pa.FixedSizeListArray.from_arrays(pa.array(batch.x.ravel()), FEATURES)
    return pa.record_batch({"id": pa.array(batch.ids), "y": pa.array(batch.y), "x": x})


def encode(batch: Batch, form: str) -> bytes:
    """The body of a request."""
    if form == "Arrow":
        table = to_arrow(batch)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_batch(table)
        return sink.getvalue().to_pybytes()
    rows = [{"id": i, "x": x, "y": y} for i, x, y in zip(batch.ids, batch.x, batch.y.tolist(), strict=True)]
    if form == "NDJSON":
        return b"".join(orjson.dumps(r, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE) for r in rows)
    return orjson.dumps({"examples": rows}, option=orjson.OPT_SERIALIZE_NUMPY)
