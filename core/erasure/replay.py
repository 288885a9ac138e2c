"""Repeating erasures after a restore from a backup: those whose receipts are in the store, but not in the database."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.erasure import receipts
from core.erasure.queries import all_subjects
from core.erasure.requests import receive
from core.erasure.states import RequestDetails, token_of
from core.errors import Conflict
from core.tables.erasures import Receipt
from core.versions.store import Store


def replay(
    session: Session, store: Store, secret: bytes, asked_by: str, request_id: str | None
) -> tuple[int, list[str]]:
    """Import the missing receipts, and file their erasures again; returns how many, and the ids of the new erasures.

    A receipt names nobody: each person that the database knows is held against its token. Call it before the workers
    run: a receipt that the restored database writes first takes the place of the next one in the chain.
    """
    files = receipts.read_files(store)
    damaged = [name for name, body in files.items() if not receipts.is_genuine(name, body)]
    if damaged:
        message = f"The file of receipt {receipts.number_in(damaged[0])} in the store was altered."
        raise Conflict("receipts_damaged", message)
    known = {str(body.get("sha256")) for body in receipts.chain(session)}
    missing = [body for body in files.values() if body["sha256"] not in known]
    for body in missing:
        last = session.scalar(select(Receipt).order_by(Receipt.number.desc()).limit(1))
        follows = (last.number + 1, last.sha256) if last else (1, receipts.START)
        if (body["number"], body["previous"]) == follows:
            row = Receipt(number=follows[0], erasure_id=str(body["erasure"]), body=body, sha256=str(body["sha256"]))
            session.add(row)
            session.flush()
    wanted = {str(body["subject_token"]) for body in missing}
    people = all_subjects(session) if wanted else []
    filings = [
        RequestDetails(subject, "carried out again after a restore")
        for subject in people
        if token_of(subject, secret) in wanted
    ]
    begun = [receive(session, filing, secret, asked_by, request_id).id for filing in filings]
    return len(missing), begun
