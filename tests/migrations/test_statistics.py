"""SQLite looks examples up in their indexes, however many there are of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.dialects import sqlite

from core.database import Database
from core.settings import Settings
from core.tables.ledger import Example, PendingExample
from migrations import runner

NAMES = [f"e{i}" for i in range(100)]
HASHES = [f"h{i}".encode() for i in range(100)]
IN_USE = or_(Example.removed.is_(None), Example.quarantine.is_not(None))
LOOKUPS: dict[str, tuple[ColumnElement[bool], ...]] = {
    "uq_examples_id_in_force (model_id=? AND id=?)": (Example.removed.is_(None), Example.id.in_(NAMES)),
    "uq_examples_id_in_force (model_id=? AND id=?) ": (IN_USE, Example.id.in_(NAMES)),
    "ix_examples_subject (subject=? AND model_id=?)": (Example.removed.is_(None), Example.subject == HASHES[0]),
    "ix_examples_subject (subject=? AND model_id=?) ": (Example.removed.is_(None), Example.subject.in_(HASHES)),
    "ix_examples_source (model_id=? AND source=?)": (Example.removed.is_(None), Example.source == "load"),
    "ix_examples_removed (model_id=? AND removed>?)": (Example.removed > 7,),
    "PRIMARY KEY (model_id=? AND position=?)": (Example.position.in_(range(100)),),
    "PRIMARY KEY (model_id=? AND position>? AND position<?)": (Example.position > 1, Example.position < 9),
    "PRIMARY KEY (model_id=?)": (Example.removed.is_(None),),
}


@pytest.mark.parametrize("index", LOOKUPS)
def test_examples_are_looked_up_in_an_index(tmp_path: Path, index: str) -> None:
    database = Database(Settings(home=tmp_path))
    runner.upgrade(database)
    query = select(Example.position, Example.x).where(Example.model_id == 1, *LOOKUPS[index])
    text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    with database.engine.connect() as connection:
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
    assert plan[0].endswith(index.strip()), plan


def test_unlabelled_examples_of_a_person_are_looked_up_in_an_index(tmp_path: Path) -> None:
    database = Database(Settings(home=tmp_path))
    runner.upgrade(database)
    query = select(PendingExample.id).where(PendingExample.model_id == 1, PendingExample.subject.in_(HASHES))
    text = str(query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}))
    with database.engine.connect() as connection:
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
    assert plan[0].endswith("ix_pending_examples_subject (subject=? AND model_id=?)"), plan
