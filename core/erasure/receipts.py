"""Receipts of erasures, chained by hash so that a missing, altered or reordered receipt is detected.

The hash of a receipt covers its text and the hash of the previous receipt. Receipts are stored in the database and as
files in the store: if the database is restored from a backup, the files show which erasures must be repeated.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import NotFound, Unavailable
from core.tables.bookkeeping import Metadata
from core.tables.erasures import Erasure, Receipt
from core.versions.store import Store

FOLDER = "receipts"
FILE = re.compile(FOLDER + r"/[0-9]{8,}-[0-9a-f]{16}\.json")
START = "0" * 64
"""The previous hash of the first receipt."""


def hash_of(body: Mapping[str, object]) -> str:
    """The hash of a receipt's text, without the hash itself."""
    plain = {name: value for name, value in body.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def append(session: Session, erasure_id: str, content: Mapping[str, object]) -> Receipt:
    """Append a receipt to the chain."""
    # receipts are written one at a time: a second writer waits here
    session.get_one(Metadata, "receipts", with_for_update=True)
    last = session.scalar(select(Receipt).order_by(Receipt.number.desc()).limit(1))
    number = last.number + 1 if last else 1
    body = {"number": number, "erasure": erasure_id, **content, "previous": last.sha256 if last else START}
    sha256 = hash_of(body)
    receipt = Receipt(number=number, erasure_id=erasure_id, body={**body, "sha256": sha256}, sha256=sha256)
    session.add(receipt)
    session.flush()
    return receipt


@dataclass(frozen=True)
class Flaw:
    """A flaw in the chain."""

    number: int
    problem: str


def find_flaws(bodies: Iterable[Mapping[str, object]]) -> list[Flaw]:
    """The flaws of a list of receipts, in the order of their numbers; empty if all are complete and unaltered."""
    found, expected, previous = [], 1, START
    for body in bodies:
        number = body.get("number")
        if not isinstance(number, int) or isinstance(number, bool):
            found.append(Flaw(expected, "altered: it has no number"))
            number = expected
        elif number != expected:
            found.append(Flaw(expected, f"missing: receipt {number} follows instead"))
        if hash_of(body) != body.get("sha256"):
            found.append(Flaw(number, "altered: its text does not match its hash"))
        if number == expected and body.get("previous") != previous:
            found.append(Flaw(number, "out of order: it does not follow the previous receipt"))
        expected, previous = number + 1, str(body.get("sha256"))
    return found


def chain(session: Session) -> list[dict[str, object]]:
    """All receipts, in order."""
    return [dict(row) for row in session.scalars(select(Receipt.body).order_by(Receipt.number))]


def verify(session: Session, store: Store) -> list[Flaw]:
    """The flaws of the chain in the database, and of the files compared with it."""
    found = find_flaws(chain(session))
    rows = session.execute(select(Receipt.number, Receipt.sha256, Receipt.body)).all()
    for number, sha256, body in rows:
        if body.get("sha256") != sha256 or body.get("number") != number:
            found.append(Flaw(number, "altered: the database has another hash or number"))
    there = {number for number, *_ in rows}
    named = select(Erasure.receipt).where(Erasure.receipt.is_not(None))
    found += [Flaw(n, "missing: an erasure refers to it") for n in session.scalars(named) if n and n not in there]
    known = {name_of(number, sha256) for number, sha256, _ in rows}
    for name, body in read_files(store).items():
        if not is_genuine(name, body):
            found.append(Flaw(number_in(name), "altered: its file in the store has changed"))
        elif name not in known:
            found.append(Flaw(number_in(name), "missing in the database: it is only in the store"))
    return sorted(found, key=lambda flaw: flaw.number)


def is_genuine(name: str, body: Mapping[str, object]) -> bool:
    """Whether the content of a file matches the number and the hash in its name."""
    number = body.get("number")
    return hash_of(body) == body.get("sha256") and isinstance(number, int) and name_of(number, hash_of(body)) == name


def require_all(session: Session, store: Store) -> None:
    """Raise Unavailable while the store contains receipts that the database lacks: a new one would fork the chain."""
    rows = session.execute(select(Receipt.number, Receipt.sha256))
    if set(list_files(store)) - {name_of(number, sha256) for number, sha256 in rows}:
        message = "The store contains receipts that the database lacks. Run `amend erasures replay` first."
        raise Unavailable("receipts_behind", message)


def list_files(store: Store) -> list[str]:
    """The names of the receipts' files; other files in the folder are ignored."""
    return [name for name in store.names(FOLDER) if FILE.fullmatch(name)]


def name_of(number: int, sha256: str) -> str:
    # with the hash, because a restored database may give the same number to another receipt
    return f"{FOLDER}/{number:08d}-{sha256[:16]}.json"


def number_in(name: str) -> int:
    """The number in a file's name; 0 if there is none."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def read_files(store: Store) -> dict[str, dict[str, object]]:
    """The receipts in the store by file name, in order; an unreadable receipt is empty."""
    found: dict[str, dict[str, object]] = {}
    for name in list_files(store):
        try:
            body = json.loads(store.get(name))
        except (ValueError, NotFound):
            body = {}
        found[name] = body if isinstance(body, dict) else {}
    return found


def file_missing(database: Database, store: Store) -> int:
    """Write missing files of receipts to the store; returns how many."""
    there = set(list_files(store))
    with database.read() as session:
        rows = session.execute(select(Receipt.number, Receipt.sha256)).all()
        names = {name_of(number, sha256): number for number, sha256 in rows}
        missing = {name: session.get_one(Receipt, n).body for name, n in names.items() if name not in there}
    for name, body in missing.items():
        store.write(name, json.dumps(body, indent=2).encode())
    return len(missing)
