"""Repeating erasures after a restore from a backup: those whose receipts are in the store but not in the database."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.erasure import receipts
from core.erasure.decisions import approve
from core.erasure.queries import all_subjects
from core.erasure.requests import receive
from core.erasure.states import RequestDetails, token_of
from core.errors import Conflict
from core.tables.erasures import ErasureState, Receipt
from core.versions.store import Store


def replay(
    session: Session, store: Store, secret: bytes, requested_by: str, request_id: str | None
) -> tuple[int, list[str]]:
    """Import the missing receipts and file their erasures again; returns their number and the ids of the new erasures.

    A receipt names nobody, so the token of each person in the database is compared with it. Call this before the
    workers run: a receipt that they write first would take the place of a missing one in the chain.
    """
    files = receipts.read_files(store)
    damaged = [name for name, body in files.items() if not receipts.is_genuine(name, body)]
    if damaged:
        message = f"The file of receipt {receipts.number_in(damaged[0])} in the store was altered. Restore it first."
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
        RequestDetails(subject, "repeated after a restore from a backup")
        for subject in people
        if token_of(subject, secret) in wanted
    ]
    begun = [receive(session, filing, secret, requested_by, request_id) for filing in filings]
    for erasure in begun:
        if erasure.state is ErasureState.HELD:  # it was approved after the backup
            approve(session, erasure, requested_by)
    return len(missing), [erasure.id for erasure in begun]
