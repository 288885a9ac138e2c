"""Concurrent corrections. `test_machine` covers all histories of a single writer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from core.database import Database
from core.ledger import passes
from tests.core.ledger.reference_ledger import Row, add, contents, correct, gap_free, new_model, runs, stored


def test_exactly_one_of_the_old_and_the_new_example_is_in_force_at_every_position(database: Database) -> None:
    model = new_model(database)
    add(database, model, [Row("a", split=False), Row("b", split=False)])

    def work(writer: int) -> None:
        for i in range(8):
            correct(database, model, [Row("a", x=(10.0 + writer, float(i)))])
            add(database, model, [Row(f"new {writer} {i}", split=True)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    head = stored(database, model).head
    assert head == 2 + 4 * 8 * 2
    assert gap_free(runs(database, model), head)
    seen = set()
    for at in range(2, head + 1):
        rows = contents(passes.read_in_force(database, model.id, model.spec, at))
        assert len(rows) == 2  # b, and a as it was then
        seen |= {x for x, *_ in rows.values()}
    assert len(seen) == 1 + 4 * 8
