"""Reading the ledger during concurrent writes: the examples in force at a position never change."""

from __future__ import annotations

import math
import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from core.database import Database
from core.ledger import layouts, passes
from core.tables.models import Model
from tests.core.ledger.reference_ledger import Ledger, Row, add, contents, gap_free, new_model, remove, runs, stored

WRITERS, READERS, STEPS, STEPS_TO_A_PASS = 4, 2, 24, 2

Entry = tuple[int, tuple[str, Any]]
"""A position and the change at it."""


def write(database: Database, model: Model, writer: int, passes_done: list[float]) -> list[Entry]:
    """Add and remove at random, not much faster than the passes; what was written, by the answers."""
    chance, mine, log = random.Random(writer), dict[str, int](), list[Entry]()
    for step in range(STEPS):
        while min(passes_done) < step // STEPS_TO_A_PASS:
            time.sleep(0.01)
        rows = [Row(f"w{writer}-{step}-{i}", x=(writer, step), split=False) for i in range(chance.randint(1, 20))]
        first = add(database, model, rows).first_position
        assert first is not None
        mine |= {row.id: first + i for i, row in enumerate(rows)}
        log += [(first + i, ("added", row)) for i, row in enumerate(rows)]
        gone = chance.sample(sorted(mine), min(len(mine), chance.randint(1, 10)))
        last = remove(database, model, gone).position
        positions = sorted(mine.pop(id_) for id_ in gone)
        log += [(last - len(gone) + 1 + i, ("removed", position)) for i, position in enumerate(positions)]
    return log


def read(
    database: Database, model: Model, reader: int, passes_done: list[float], done: Event
) -> list[tuple[int, dict[int, Any]]]:
    """What passes at the head of the moment held, until the writers are done."""
    seen = []
    try:
        while not done.is_set():
            head = stored(database, model).head
            seen.append((head, contents(passes.read_in_force(database, model.id, model.spec, head))))
            passes_done[reader] += 1
    finally:
        passes_done[reader] = math.inf  # writers wait for no reader that failed
    return seen


def test_a_reader_at_a_position_sees_exactly_the_changes_up_to_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "CHUNK_BYTES", 1)  # a pass is many queries, with writes between them
    model, passes_done, done = new_model(database), [0.0] * READERS, Event()
    with ThreadPoolExecutor(WRITERS + READERS) as threads:
        readers = [threads.submit(read, database, model, i, passes_done, done) for i in range(READERS)]
        writers = [threads.submit(write, database, model, i, passes_done) for i in range(WRITERS)]
        try:
            entries = dict(entry for writer in writers for entry in writer.result())
        finally:
            done.set()
        seen = [reading for reader in readers for reading in reader.result()]

    head = stored(database, model).head
    assert sorted(entries) == list(range(1, head + 1))  # nothing twice, no gap
    assert gap_free(runs(database, model), head)
    ledger = Ledger([entries[position] for position in range(1, head + 1)])
    assert len({at for at, _ in seen}) > 5
    for at, found in seen:
        assert found == {position: (row.x, row.y, 1.0) for position, row in ledger.training(at).items()}
