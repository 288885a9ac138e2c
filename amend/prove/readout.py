"""Everything that a service stores and returns, as a flat mapping from a place to a value.

Random ids, addresses and paths are replaced by names that both twins share: the third job of one twin is compared with
the third job of the other. Durations and dates in texts are replaced as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from amend.prove.rest import responses
from amend.prove.twin import Twin, connect

Readout = dict[str, Any]
"""A value (text, number, bool or None) for every place, such as `database/versions/2,3/method`."""
Leaves = Iterator[tuple[str, Any]]

LABELLED = (
    ("jobs", "id", "created_at"),
    ("erasures", "id", "created_at"),
    ("removals", "id", "created_at"),
    ("keys", "id", "created_at"),
    ("webhooks", "id", "created_at"),
    ("deliveries", "message_id", "id"),
    ("versions", "file", "model_id, number"),
    ("workers", "name", "name"),
    ("journal_entries", "id", "at, first"),
    ("journal_entries", "file", "at, first"),
)
"""Random ids of the database: table, column, order of creation."""
RUN_ORDER = "experiment_id, start_time, name"
LABELLED_IN_MLFLOW = (
    ("runs", "run_uuid", RUN_ORDER),
    ("logged_models", "model_id", "creation_timestamp_ms, name"),
    ("datasets", "dataset_uuid", "experiment_id, name, json_extract(dataset_profile, '$.position')"),
    (
        "inputs JOIN runs ON run_uuid = destination_id",
        "input_uuid",
        f"{RUN_ORDER}, destination_type, inputs.source_type",
    ),
)
KEYS = {
    "metrics": ("run_uuid", "key", "step"),
    "latest_metrics": ("run_uuid", "key"),
    "logged_model_metrics": ("run_id", "model_id", "metric_name", "metric_step"),
    "promotions": ("model_id", "version"),
    "erasure_subjects": ("erasure_id",),
}
"""Columns that identify a row, where the primary key contains times, values or hashes, or counts rows."""
TEXT_BYTES = 2**20
"""Larger files, and files that are not UTF-8, are compared by their hashes."""
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?( UTC|Z)?|\b\d[\d.,]*(e-?\d+)? (ns|us|ms|s|min|h)\b"
    r"|\b\d[\d.,]* times( as (long|fast))?|\b\d[\d.,]* x\b"
)
"""Dates, durations and ratios of durations in texts."""


class TwinReader:
    """Reads a service that is idle."""

    def __init__(self, twin: Twin) -> None:
        self.twin, self.home = twin, twin.home
        self.labels = {str(twin.home): "HOME", **{url: f"URL{i}" for i, url in enumerate(twin.urls)}}
        self.labels |= {f":{url.rpartition(':')[2]}": f":PORT{i}" for i, url in enumerate(twin.urls)}
        with closing(connect(twin.home / "amend.db")) as connection:
            self.add_labels(connection, LABELLED)
            self.models = dict(connection.execute("SELECT id, name FROM models").fetchall())
            rows = connection.execute("SELECT model_id, number, mlflow FROM versions WHERE state = 'purged'").fetchall()
        self.purged = {(self.models[model], number) for model, number, _ in rows}
        """Names and version numbers of purged versions."""
        self.purged_runs = {json.loads(text).get("run_id") for *_, text in rows if text}
        self.timelines: dict[str, str] = {}
        """MLflow's runs whose steps are versions, and their models."""
        self.mlflow = twin.home / "mlflow" / "mlflow.db"
        if self.mlflow.exists():
            with closing(connect(self.mlflow)) as connection:
                self.add_labels(connection, LABELLED_IN_MLFLOW)
                lines = "SELECT run_uuid FROM tags WHERE key = 'amend.line'"
                query = f"SELECT run_uuid, value FROM tags WHERE key = 'amend.model' AND run_uuid IN ({lines})"  # noqa: S608
                self.timelines = dict(connection.execute(query).fetchall())

    def add_labels(self, connection: sqlite3.Connection, queries: tuple[tuple[str, str, str], ...]) -> None:
        for table, column, order in queries:
            rows = connection.execute(f"SELECT {column} FROM {table} ORDER BY {order}").fetchall()  # noqa: S608
            values = dict.fromkeys(str(value) for (value,) in rows)
            noun = table.split()[0] if column != "file" else f"file of {table}"
            self.labels |= {value: f"<{noun} {i + 1}>" for i, value in enumerate(values)}

    def read(self) -> Readout:
        """REST responses, databases and files."""
        found: Readout = {}
        for place, body in responses(self.twin, self.labels):
            found.update(self.flatten(f"rest/{place}", body))
        for index, (step, response) in enumerate(self.twin.responses):
            found[f"history/{index} {step.method}/status"] = response.status_code
        found.update(self.read_database("database", self.home / "amend.db"))
        if self.mlflow.exists():
            found.update(self.read_database("mlflow", self.mlflow))
        found.update(self.read_files())
        return self.rename(found)

    def rename(self, found: Readout) -> Readout:
        """Replace random ids in places and values; the longest first, since an address contains a port."""
        pattern = re.compile("|".join(re.escape(old) for old in sorted(self.labels, key=len, reverse=True)))

        def shared(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            return TIMES.sub("(time)", pattern.sub(lambda match: self.labels[match[0]], value))

        return {pattern.sub(lambda match: self.labels[match[0]], place): shared(v) for place, v in found.items()}

    def flatten(self, place: str, value: Any) -> Leaves:
        """The leaves of a JSON value. Text that is JSON is parsed, so that each of its numbers is compared."""
        if isinstance(value, dict):
            place += self.mark(value)
            yield f"{place}/#", len(value)
            for name, item in value.items():
                yield from self.flatten(f"{place}/{name}", item)
        elif isinstance(value, list):
            yield f"{place}/#", len(value)
            for index, item in enumerate(value):
                yield from self.flatten(f"{place}/{index}", item)
        elif isinstance(value, str) and value.startswith(("{", "[")) and (parsed := parse(value)) is not None:
            yield from self.flatten(place, parsed)
        elif isinstance(value, bytes):
            yield f"{place}/bytes", f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"
        else:
            yield place, value

    def mark(self, row: Mapping[str, Any]) -> str:
        """A mark on what is about a purged version, and on windows of which only rounded metrics are left."""
        if row.get("rounded"):
            return " (rounded)"
        run = row.get("run_uuid") or row.get("run_id")
        step = row.get("step", row.get("metric_step"))
        model = (
            row.get("model") or self.models.get(row.get("model_id")) or self.timelines.get(str(run)) or row.get("name")
        )
        number = row.get("version", step if run in self.timelines else row.get("number"))
        gone = run in self.purged_runs or (model, number) in self.purged or row.get("state") == "purged"
        return " (purged version)" if gone else ""

    def read_database(self, name: str, file: Path) -> Leaves:
        """Every column of every row of every table, by key."""
        with closing(connect(file)) as connection:
            connection.row_factory = sqlite3.Row
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
            for (table,) in tables:
                columns = connection.execute(f"PRAGMA table_info('{table}')").fetchall()
                keys = KEYS.get(table) or [column["name"] for column in columns if column["pk"]]
                rows = connection.execute(f"SELECT * FROM '{table}'").fetchall()  # noqa: S608
                yield f"{name}/{table}/#", len(rows)
                for index, row in enumerate(rows):
                    key = ",".join(readable(row[column]) for column in keys) or str(index)
                    yield from self.flatten(f"{name}/{table}/{key}", dict(row))

    def read_files(self) -> Leaves:
        """Every file that is not a database; text line by line, so that ids in it can be replaced."""
        for file in sorted(self.home.rglob("*")):
            if not file.is_file() or ".db" in file.suffix:
                continue
            place, data = f"files/{file.relative_to(self.home)}", file.read_bytes()
            text = as_text(data)
            if text is None:
                yield from self.flatten(place, data)
            else:
                yield from self.flatten(place, text if parse(text) is not None else text.splitlines())


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def as_text(data: bytes) -> str | None:
    """The text of a file; None if it is large or not text."""
    if len(data) > TEXT_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def readable(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
