"""Receipts: what was done for an erasure, chained by hash so that a missing, altered or reordered one shows.

A receipt's hash covers its whole text, with the hash of the receipt before. Receipts are in the database and, as files,
in the store: a database that is restored from a backup lacks the newest, and the files tell what it must do again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import Database
from core.erasure.tables import Receipt
from core.marks import Mark
from core.versions.store import Store

FOLDER = "receipts"
START = "0" * 64
"""What the first receipt is chained to."""


def hash_of(body: dict[str, Any]) -> str:
    """The hash of a receipt's text, the hash itself left out."""
    plain = {name: value for name, value in body.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def append(session: Session, erasure_id: str, content: dict[str, Any]) -> Receipt:
    """The next receipt of the chain."""
    # whoever writes a receipt waits here for whoever writes one already
    session.get_one(Mark, "receipts", with_for_update=True)
    last = session.scalar(select(Receipt).order_by(Receipt.number.desc()).limit(1))
    number = last.number + 1 if last else 1
    body = {"number": number, "erasure": erasure_id, **content, "previous": last.sha256 if last else START}
    body["sha256"] = hash_of(body)
    receipt = Receipt(number=number, erasure_id=erasure_id, body=body, sha256=body["sha256"])
    session.add(receipt)
    session.flush()
    return receipt


@dataclass(frozen=True)
class Flaw:
    """Something that is wrong with the chain."""

    number: int
    problem: str


def flaws(bodies: Iterable[dict[str, Any]]) -> list[Flaw]:
    """What is wrong with receipts, in the order of their numbers; nothing, if they are all there as they were made."""
    found, expected, previous = [], 1, START
    for body in bodies:
        number = int(body.get("number", 0))
        if number != expected:
            found.append(Flaw(expected, f"missing: number {number} comes instead"))
        if hash_of(body) != body.get("sha256"):
            found.append(Flaw(number, "altered: its text does not have the hash that it names"))
        if number == expected and body.get("previous") != previous:
            found.append(Flaw(number, "out of place: it was not made after the receipt before it"))
        expected, previous = number + 1, str(body.get("sha256"))
    return found


def chain(session: Session) -> list[dict[str, Any]]:
    """All receipts, in order."""
    return [dict(row) for row in session.scalars(select(Receipt.body).order_by(Receipt.number))]


def verify(session: Session, store: Store) -> list[Flaw]:
    """What is wrong with the chain in the database, or between it and the files."""
    ours = chain(session)
    found = flaws(ours)
    known = {body.get("sha256") for body in ours}
    for body in read_files(store):
        if hash_of(body) != body.get("sha256"):
            found.append(Flaw(int(body.get("number", 0)), "altered: its file in the store does not have its hash"))
        elif body["sha256"] not in known:
            found.append(Flaw(int(body["number"]), "is in the store and not in the database"))
    rows = session.execute(select(Receipt.number, Receipt.sha256, Receipt.body))
    found += [Flaw(n, "altered: the database names another hash") for n, sha, body in rows if body.get("sha256") != sha]
    return sorted(found, key=lambda flaw: flaw.number)


def name_of(number: int, sha256: str) -> str:
    # by its hash, too: a database that was restored may give the number to another receipt
    return f"{FOLDER}/{number:08d}-{sha256[:16]}.json"


def read_files(store: Store) -> list[dict[str, Any]]:
    """The receipts in the store, by number."""
    return [json.loads(store.get(name)) for name in store.names(FOLDER)]


def file_missing(database: Database, store: Store) -> int:
    """Write the files that are not there yet; how many."""
    filed = set(store.names(FOLDER))
    with database.read() as session:
        rows = session.execute(select(Receipt.number, Receipt.sha256)).all()
        names = {name_of(number, sha256): number for number, sha256 in rows}
        missing = {name: session.get_one(Receipt, n).body for name, n in names.items() if name not in filed}
    for name, body in missing.items():
        store.write(name, json.dumps(body, indent=2).encode())
    return len(missing)
