"""Everything that a service stores and returns, as a flat mapping from a place to a value.

Random ids, addresses and paths are replaced by names that both twins share: the third job of one twin is compared with
the third job of the other.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from amend.prove.rest import responses
from amend.prove.twin import Twin, connect

Readout = dict[str, Any]
"""A value (text, number, bool or None) for every place, such as `database/versions/2,3/method`."""

LABELLED = (
    ("jobs", "id", "created_at"),
    ("erasures", "id", "created_at"),
    ("removals", "id", "created_at"),
    ("keys", "id", "created_at"),
    ("webhooks", "id", "created_at"),
    ("deliveries", "message_id", "id"),
    ("versions", "file", "model_id, number"),
    ("workers", "name", "name"),
)
"""Random ids of the database: table, column, order of creation."""
LABELLED_IN_MLFLOW = (
    ("runs", "run_uuid", "experiment_id, start_time, name"),
    ("logged_models", "model_id", "creation_timestamp_ms, name"),
    ("datasets", "dataset_uuid", "experiment_id, name, json_extract(dataset_profile, '$.position')"),
    ("inputs", "input_uuid", "(SELECT experiment_id || start_time || name FROM runs WHERE run_uuid = destination_id), "
     "destination_type, source_type"),
)
METRIC_TABLES = {
    "metrics": ("run_uuid", "key", "step"),
    "latest_metrics": ("run_uuid", "key"),
    "logged_model_metrics": ("run_id", "model_id", "metric_name", "metric_step"),
}
"""Tables of metrics in MLflow, and the columns that identify a metric; the primary keys contain times and values."""
JSON_STARTS = ("{", "[")
TEXT_LIMIT = 2**20


def read_everything(twin: Twin) -> tuple[Readout, dict[str, str]]:
    """REST responses, databases and files of a service that is idle; and the names given to random ids."""
    labels = find_labels(twin)
    found: Readout = {}
    for place, body in responses(twin, labels):
        found.update(flatten(f"rest/{place}", body))
    for index, (step, response) in enumerate(twin.responses):
        found.update(flatten(f"history/{index} {step.method}/status", response.status_code))
    found.update(read_database("database", twin.home / "amend.db", set()))
    if (twin.home / "mlflow/mlflow.db").exists():
        found.update(read_database("mlflow", twin.home / "mlflow/mlflow.db", purged_metrics(twin.home)))
    found.update(read_files(twin.home))
    return rename(found, labels), labels


def find_labels(twin: Twin) -> dict[str, str]:
    """The shared name of each random id, address and path."""
    labels = {str(twin.home): "HOME", **{url: f"URL{i}" for i, url in enumerate(twin.urls)}}
    labels |= {f":{url.rpartition(':')[2]}": f":PORT{i}" for i, url in enumerate(twin.urls)}
    for file, queries in (("amend.db", LABELLED), ("mlflow/mlflow.db", LABELLED_IN_MLFLOW)):
        if not (twin.home / file).exists():
            continue
        with closing(connect(twin.home / file)) as connection:
            for table, column, order in queries:
                rows = connection.execute(f"SELECT DISTINCT {column} FROM {table} ORDER BY {order}").fetchall()  # noqa: S608
                labels |= {str(value): f"<{table} {i + 1}>" for i, (value,) in enumerate(rows)}
    return labels


def rename(found: Readout, labels: dict[str, str]) -> Readout:
    """Replace random ids in places and values; the longest first, since an address contains a port."""
    pattern = re.compile("|".join(re.escape(old) for old in sorted(labels, key=len, reverse=True)))

    def shared(value: Any) -> Any:
        return pattern.sub(lambda match: labels[match[0]], value) if isinstance(value, str) else value

    return {shared(place): shared(value) for place, value in found.items()}


def flatten(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON value. Text that is JSON is parsed, so that each of its numbers is compared."""
    if isinstance(value, dict):
        yield f"{place}/#", len(value)
        for name, item in value.items():
            yield from flatten(f"{place}/{name}", item)
    elif isinstance(value, list):
        yield f"{place}/#", len(value)
        for index, item in enumerate(value):
            yield from flatten(f"{place}/{index}", item)
    elif isinstance(value, str) and value.startswith(JSON_STARTS) and (parsed := parse(value)) is not None:
        yield from flatten(place, parsed)
    elif isinstance(value, bytes):
        yield f"{place}/bytes", describe_bytes(value)
    else:
        yield place, value


def parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def describe_bytes(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def purged_metrics(home: Path) -> set[tuple[str, int | None]]:
    """MLflow's runs of purged versions, each with None; and its timelines, each with the numbers of purged versions."""
    with closing(connect(home / "amend.db")) as connection:
        purged = connection.execute(
            "SELECT models.name, number, mlflow FROM versions JOIN models ON models.id = model_id WHERE state = 'purged'"
        ).fetchall()
    with closing(connect(home / "mlflow/mlflow.db")) as connection:
        lines = connection.execute(
            "SELECT run_uuid, value FROM tags WHERE key = 'amend.model' AND run_uuid IN "
            "(SELECT run_uuid FROM tags WHERE key = 'amend.line')"
        ).fetchall()
    found: set[tuple[str, int | None]] = {
        (place["run_id"], None) for *_, text in purged if text and (place := json.loads(text)).get("run_id")
    }
    return found | {(run, number) for run, model in lines for name, number, _ in purged if name == model}


def read_database(name: str, file: Path, purged: set[tuple[str, int | None]]) -> Iterator[tuple[str, Any]]:
    """Every column of every row of every table, by primary key. Rows that contain only rounded figures say so."""
    with closing(connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        for (table,) in tables:
            keys = METRIC_TABLES.get(table) or [
                row["name"] for row in connection.execute(f"PRAGMA table_info('{table}')") if row["pk"]
            ]
            rows = connection.execute(f"SELECT * FROM '{table}'").fetchall()  # noqa: S608
            yield f"{name}/{table}/#", len(rows)
            for index, row in enumerate(rows):
                key = ",".join(readable(row[column]) for column in keys) or str(index)
                for column in row.keys():  # noqa: SIM118
                    yield from flatten(f"{name}/{table}/{key}{rounded(table, row, purged)}/{column}", row[column])


def rounded(table: str, row: sqlite3.Row, purged: set[tuple[str, int | None]]) -> str:
    """A mark on rows of which only rounded figures are left."""
    names = row.keys()
    if "rounded" in names:
        return " (rounded)" if row["rounded"] else ""
    run = row["run_uuid"] if "run_uuid" in names else row["run_id"] if "run_id" in names else None
    step = row["step"] if "step" in names else row["metric_step"] if "metric_step" in names else None
    return " (purged version)" if {(run, None), (run, step)} & purged else ""


def readable(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def read_files(home: Path) -> Iterator[tuple[str, Any]]:
    """Every file that is not a database; text line by line, so that ids in it can be replaced."""
    for file in sorted(home.rglob("*")):
        if not file.is_file() or file.suffix == ".db" or file.name.endswith((".db-wal", ".db-shm")):
            continue
        place, data = f"files/{file.relative_to(home)}", file.read_bytes()
        try:
            text = data.decode() if len(data) < TEXT_LIMIT and b"\0" not in data else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            yield f"{place}/bytes", describe_bytes(data)
        elif (parsed := parse(text)) is not None:
            yield from flatten(place, parsed)
        else:
            yield from flatten(place, text.splitlines())
