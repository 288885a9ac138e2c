"""People with examples in models of a database, and erasures of them, entered without a service or a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from core.database import Database
from core.erasure import decisions, queries, requests, state_changes, state_machine
from core.erasure.identifiers import subjects_of
from core.erasure.request_details import RequestDetails
from core.ledger.subject_hashes import subject_hash
from core.tables.erasures import UNDONE, Erasure, ErasureState, Part
from core.tables.models import Model
from core.versions.store import Store
from tests.core.ledger.reference_ledger import SECRET, Row, add

STEPS = [
    ErasureState.RECEIVED,
    ErasureState.ADAPTING,
    ErasureState.VERIFYING,
    ErasureState.PURGING,
    ErasureState.COMPLETED,
]


def store_of(database: Database) -> Store:
    """The store of a database."""
    with database.read() as session:
        return Store(session.info["settings"].artifacts)


def somebody() -> str:
    """A person whom no other test knows."""
    return f"person {uuid.uuid4().hex}"


def give(database: Database, model: Model, person: str, *ids: str) -> None:
    """Add examples about a person to a model."""
    add(database, model, [Row(id, subject=person, split=False) for id in ids])


def ask(database: Database, person: str, *aliases: str, **options: Any) -> Erasure:
    """Ask for a person to be erased."""
    others = tuple(subject_hash(alias, SECRET) for alias in aliases)
    with database.write() as session:
        filing = RequestDetails(subject_hash(person, SECRET), aliases=others, **options)
        id = requests.receive(session, filing, SECRET, "key").id
    return find_erasure(database, id)


def change(database: Database, id: str, act: Callable[[Session, Erasure], None]) -> None:
    with database.write() as session:
        act(session, queries.find(session, id))


def find_erasure(database: Database, id: str) -> Erasure:
    with database.read() as session:
        return queries.find(session, id)


def parts(database: Database, id: str) -> dict[str, Part]:
    """What an erasure means for each model, by the model's name."""
    with database.read() as session:
        return {part.model: part for part in queries.parts_of(session, queries.find(session, id))}


def reach(database: Database, id: str, model: Model, state: ErasureState, **report: Any) -> None:
    """Take a model's part of an erasure to a state, step by step, as its job would."""
    with database.write() as session:
        part = session.get_one(Part, (id, model.id))
        if part.state in UNDONE or part.state is ErasureState.HELD:  # jobs ignore it
            return
        part.report = report or part.report
        path = [ErasureState.FAILED] if state is ErasureState.FAILED else STEPS[: STEPS.index(state) + 1]
        for step in path[path.index(part.state) + 1 :] if part.state in path else path:
            state_machine.move(part, step)
            state_changes.conclude(session, queries.find(session, id))


def erase_nobody(database: Database, person: str | None = None) -> str:
    """The id of an erasure of a person whom nobody knows: completed by a decision, with a receipt."""
    id = ask(database, person or somebody()).id
    change(database, id, lambda session, erasure: decisions.approve(session, erasure, "key"))
    return id


def hashes(database: Database, id: str) -> list[bytes]:
    """The hashes by which an erasure finds examples."""
    with database.read() as session:
        return subjects_of(session, queries.find(session, id))
