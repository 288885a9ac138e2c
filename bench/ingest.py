"""Compares the service with plain database access: rows/s of examples written over HTTP, and read by a pass.

Each ratio is computed within a round, in which every contestant runs once, and the median over the rounds is reported:
on a noisy machine, measurements taken minutes apart cannot be compared.
"""

from __future__ import annotations

import json as json_module
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bench.baselines import (
    FEATURES,
    Batches,
    Plain,
    PostgresReader,
    PostgresWriter,
    Reader,
    SqliteReader,
    SqliteWriter,
    Writer,
)
from bench.contestants import CONTENT_TYPES, MODEL, ClientWriter, LedgerReader, ServiceWriter, encode, vector_model
from bench.wire import Connection, Service, amend, request
from tests import servers

K = TypeVar("K")
PLAIN = (Plain.LEDGER, Plain.KEY, Plain.BARE)
DATABASES = ("PostgreSQL", "SQLite")
TARGETS = {
    "PostgreSQL": {"Arrow": 0.70, "NDJSON": 0.50, "JSON": 0.35},
    "SQLite": {"Arrow": 0.50, "NDJSON": 0.35, "JSON": 0.25},
}
IN_FLIGHT = (1, 2, 4)
MAIN = 4
"""Targets apply to four concurrent requests: the service, the database and the callers share two cores, and a request
in transit keeps no core busy."""
LOAD = 50_000
"""Rows per request when the ledger is filled for reading."""


@dataclass(frozen=True)
class Figure:
    """The speed of one contestant over all rounds."""

    database: str
    batch: int
    connections: int
    name: str
    rows_per_second: float
    ratios: dict[str, float]
    """Ratio to each plain writer with one connection. A ledger serialises its changes, so this is the upper limit.
    Targets apply to the first."""
    target: float | None
    crowded: float | None = None
    """Ratio to the first plain writer with as many connections, which need not keep the rows in order."""


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    rounds: int
    batches: dict[int, int]
    """Batch size -> number of batches per turn."""
    rows: int
    seconds: float
    """Duration of one turn of predictions."""


FULL = Effort(5, {1_000: 40, 10_000: 8}, 1_000_000, 1.0)
QUICK = Effort(3, {1_000: 10}, 100_000, 0.4)


@dataclass(frozen=True)
class Contest:
    """The service on an empty database, and its competitors without a service."""

    database: str
    service: Service
    writers: list[Writer]
    readers: list[Reader]
    """They read the service's own tables."""


@contextmanager
def contest(database: str, folder: Path) -> Iterator[Contest]:
    home = folder / "home"
    if database == "SQLite":
        ours = home / "amend.db"
        with amend(home) as service:
            files = {
                name: empty_ledger(folder / "other") if name == Plain.LEDGER else folder / "plain.db" for name in PLAIN
            }
            yield Contest(database, service, [SqliteWriter(files[name], name) for name in PLAIN], [SqliteReader(ours)])
        return
    with servers.postgres(durable=True) as server:
        url, its = server.create_database("bench_plain"), server.create_database("bench_amend")
        with amend(home, its) as service:
            readers: list[Reader] = [PostgresReader(its, parsed) for parsed in (False, True)]
            empty_ledger(folder / "other", url)
            yield Contest(database, service, [PostgresWriter(url, name) for name in PLAIN], readers)


def empty_ledger(home: Path, url: str = "") -> Path:
    """Create a second copy of the service's tables for the plain writers. Returns the file, for SQLite."""
    environment = {**os.environ, "AMEND_HOME": str(home), "AMEND_DATABASE_URL": url}
    subprocess.run([sys.executable, "-P", "-m", "migrations"], env=environment, check=True, stdout=subprocess.DEVNULL)
    return home / "amend.db"


def turn(writer: Writer, made: Batches, size: int, count: int, connections: int) -> float:
    """Rows/s of one writer over several connections. Payloads and connections are prepared beforehand."""
    payloads = [writer.payload(made.one(size)) for _ in range(count)]
    links = [writer.connect() for _ in range(connections)]

    def lane(number: int) -> None:
        for payload in payloads[number::connections]:
            writer.write(links[number], payload)

    with ThreadPoolExecutor(connections) as pool:
        start = time.perf_counter()
        list(pool.map(lane, range(connections)))
        seconds = time.perf_counter() - start
    for link in links:
        link.close()
    return size * count / seconds


def rounds(count: int, turns: dict[K, Callable[[], float]]) -> dict[K, list[float]]:
    """The rates of every contestant in every round. Each round starts with a different contestant."""
    names, rates = list(turns), {name: [0.0] * count for name in turns}
    for turn_ in turns.values():  # warm-up
        turn_()
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name][number] = turns[name]()
    return rates


def middle_ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, others, strict=True))


def write(place: Contest, effort: Effort) -> list[Figure]:
    """Measure every format, the Python client and the plain tables, for all batch sizes and numbers of connections."""
    made, figures, database = Batches(), [], place.database
    place.service.post("/v1/models", vector_model(MODEL))
    formats = [ServiceWriter(place.service, name) for name in CONTENT_TYPES]
    writers: list[Writer] = [*place.writers, *formats, ClientWriter(place.service)]
    for size, count in effort.batches.items():
        one = partial(turn, made=made, size=size, count=count)
        rates = rounds(effort.rounds, {(n, w.name): partial(one, w, connections=n) for n in IN_FLIGHT for w in writers})
        for (connections, name), mine in rates.items():
            target = TARGETS[database].get(name) if connections == MAIN else None
            ratios = {plain.name: middle_ratio(mine, rates[1, plain.name]) for plain in place.writers}
            crowded = middle_ratio(mine, rates[connections, place.writers[0].name])
            rate = statistics.median(mine)
            figures.append(Figure(database, size, connections, name, rate, ratios, target, crowded))
    return figures


def read(place: Contest, effort: Effort) -> list[Figure]:
    """Compare a pass over the ledger with plain queries for the same columns of the same table."""
    service = place.service
    service.post("/v1/models", vector_model("pass", holdout=0))
    connection, made = Connection(service.port), Batches(seed=1)
    for start in range(0, effort.rows, LOAD):
        body = encode(made.one(min(LOAD, effort.rows - start)), "Arrow")
        connection.send(request("/v1/models/pass/examples", body, CONTENT_TYPES["Arrow"], service.key))
    connection.close()
    readers: list[Reader] = [*place.readers, LedgerReader(service, "pass")]

    def one(reader: Reader) -> float:
        start = time.perf_counter()
        count = reader.read()
        seconds = time.perf_counter() - start
        assert count == effort.rows, f"{reader.name}: {count} rows"
        return count / seconds

    rates = rounds(min(5, effort.rounds), {reader.name: partial(one, reader) for reader in readers})
    plain = rates[place.readers[0].name]
    return [
        Figure(
            place.database, effort.rows, 1, name, statistics.median(mine), {"plain": middle_ratio(mine, plain)}, None
        )
        for name, mine in rates.items()
    ]


def writing_table(figures: list[Figure]) -> Table:
    """Targets compare with the same bytes written to the same table over one connection. The last columns compare with
    as many connections, and with other plain tables.
    """
    out = Table(title=f"Writing examples of {FEATURES} float32", title_justify="left")
    plain = ("vs ledger's table", "vs key on id", "vs no index")
    shown = ("database", "rows per batch", "connections", "", "rows/s", plain[0], "target", "met")
    for column in (*shown, "vs as many connections", *plain[1:]):
        out.add_column(column, justify="left" if column in ("database", "") else "right")
    place = None
    for f in figures:
        if place not in (None, (f.database, f.batch, f.connections)):
            out.add_section()
        place = (f.database, f.batch, f.connections)
        target = "" if f.target is None else f"{f.target:.0%}"
        ratio, *others = f.ratios.values()
        met = "" if f.target is None else "yes" if ratio >= f.target else "NO"
        row = (f.database, f"{f.batch:,}", str(f.connections), f.name, f"{f.rows_per_second:,.0f}", f"{ratio:.0%}")
        out.add_row(*row, target, met, f"{f.crowded:.0%}", *(f"{other:.0%}" for other in others))
    return out


def reading_table(figures: list[Figure]) -> Table:
    title = f"Reading {figures[0].batch:,} examples of {FEATURES} float32; 100 %: the first row"
    out = Table(title=title, title_justify="left")
    for column in ("database", "", "rows/s", "vs plain"):
        out.add_column(column, justify="right" if column in ("rows/s", "vs plain") else "left")
    for f in figures:
        out.add_row(f.database, f.name, f"{f.rows_per_second:,.0f}", f"{f.ratios['plain']:.0%}")
    return out


def run(only: str, rows: int | None, quick: bool, json: Path | None) -> None:
    """Measure writing and reading on both databases, then predictions without and with uncertainty."""
    from bench.predictions import predictions, predictions_table
    from bench.uncertainty import uncertainty, uncertainty_table

    console = Console()
    if not console.is_terminal:
        console.width = 140
    effort = QUICK if quick else FULL
    effort = replace(effort, rows=rows or effort.rows)
    figures: dict[str, list[Any]] = {}
    for part, measure, table in (("writing", write, writing_table), ("reading", read, reading_table)):
        for database in DATABASES:
            if part.startswith(only) or database.lower().startswith(only):
                console.print(f"{database}: {part} ...")
                with TemporaryDirectory() as folder, contest(database, Path(folder)) as place:
                    figures.setdefault(part, []).extend(measure(place, effort))
        if part in figures:
            console.print(table(figures[part]))
    if "predictions".startswith(only):
        console.print("predictions ...")
        figures["predictions"] = list(predictions(min(5, effort.rounds), effort.seconds))
        console.print(predictions_table(figures["predictions"]))
    if "uncertainty".startswith(only):
        console.print("uncertainty ...")
        figures["uncertainty"] = list(uncertainty(min(5, effort.rounds), effort.seconds))
        console.print(uncertainty_table(figures["uncertainty"]))
    if json is not None:
        json.write_text(json_module.dumps({part: [asdict(f) for f in done] for part, done in figures.items()}))
