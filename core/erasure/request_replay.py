"""Restoring requests, decisions and receipts after a restore from a backup, and repeating completed erasures.

Everything is taken from the leaves of the register that the store has and the database lacks. Of open requests, the
journal has what the leaves do not say: the keyed hash of the person, and the reasons.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.erasure import decisions, receipts, state_changes, state_machine
from core.erasure.identifiers import forget_subjects, owners_of, subjects_of, token_of
from core.erasure.request_details import RequestDetails
from core.erasure.requests import receive, resolve
from core.erasure.subject_examples import all_subjects
from core.ledger import journal
from core.register import files, log, restored_leaves
from core.register.journal_files import decode_request
from core.register.records import Acknowledgement
from core.register.signing import configured_keys, is_signature, pae
from core.tables.erasures import UNENDED, Erasure, ErasureState, Identifier, Part, Receipt
from core.tables.models import Model
from core.tables.register import RecordKind, SigningKey
from core.versions.store import Store

REASON = "repeated after a restore from a backup"
UNDOINGS = {
    RecordKind.REFUSED: ErasureState.REFUSED,
    RecordKind.WITHDRAWN: ErasureState.WITHDRAWN,
    RecordKind.LIFTED: ErasureState.LIFTED,
}
"""Records with which a request ended without an erasure, and its state since then."""


@dataclass
class RequestHistory:
    """What the missing leaves say about a request."""

    last: dict[RecordKind, Mapping[str, Any]] = field(default_factory=dict)
    """The last record of each kind."""
    tokens: list[str] = field(default_factory=list)
    """Of the person's identifiers."""
    decision: RecordKind | None = None
    """Whether the request was last held or approved, if it was."""

    def add(self, record: Mapping[str, Any]) -> None:
        kind = RecordKind(record["kind"])
        self.last[kind] = record
        if kind in (RecordKind.HELD, RecordKind.APPROVED):
            self.decision = kind
        if "subject_token" in record:
            new = (record["subject_token"], *record.get("alias_tokens", ()))
            self.tokens = list(dict.fromkeys((*self.tokens, *new)))

    def __contains__(self, kind: RecordKind) -> bool:
        return kind in self.last

    @property
    def begun(self) -> Mapping[str, Any] | None:
        """The last record that files the request."""
        return self.last.get(RecordKind.FILED) or self.last.get(RecordKind.RESTRICTED)

    @property
    def is_approved(self) -> bool:
        """Whether the request was approved, and not held again since."""
        return self.decision is RecordKind.APPROVED


@dataclass
class ReplayedRequests:
    """What happened to requests."""

    receipts: int = 0
    repeated: list[str] = field(default_factory=list)
    """Ids of the erasures that are carried out again."""
    restored: list[str] = field(default_factory=list)
    """Ids of the requests that were restored, or decided about again."""


def replay_requests(
    session: Session, store: Store, secret: bytes, details: Mapping[str, dict[str, Any]], by: str
) -> ReplayedRequests:
    """Restore requests, decisions and receipts, and file completed erasures again.

    `details` are open requests as in the journal, by id. A record names nobody, so the tokens of all people in the
    database are compared with it.
    """
    done, missing = ReplayedRequests(), restored_leaves.find_missing(session, store)
    completed = restored_leaves.records_of(missing, RecordKind.COMPLETED)
    imported = {record["receipt"]: read_receipt(session, store, record, missing) for record in completed}
    done.receipts = len(imported)
    people = {token_of(subject, secret): subject for subject in all_subjects(session)} if missing else {}
    requests, ended = by_request(missing), dict[str, Erasure]()
    for id, history in requests.items():
        erasure = session.get(Erasure, id)
        if erasure is not None and erasure.state not in UNENDED:
            continue
        if RecordKind.COMPLETED in history:
            receipt = imported[history.last[RecordKind.COMPLETED]["receipt"]]
            ended[id] = complete_again(session, erasure, id, receipt, history)
        elif history.begun is None and erasure is None:
            continue  # its record has expired
        elif ended_as := next((state for kind, state in UNDOINGS.items() if kind in history), None):
            undo_again(session, erasure, id, history, ended_as)
        else:
            reopen(session, erasure, id, history, details.get(id) or {}, people)
        done.restored.append(id)
    for id, erasure in ended.items():  # after the others: the same person may have an open request
        there = [people[token] for token in requests[id].tokens if token in people]
        done.repeated += repeat(session, erasure, there, secret, by)
    done.repeated = list(dict.fromkeys(done.repeated))
    # last, because it locks the register; the leaves from above follow
    if restored_leaves.append(session, missing):
        session.add_all(imported.values())
    session.flush()
    return done


def by_request(missing: Sequence[Acknowledgement]) -> dict[str, RequestHistory]:
    """The records of each request."""
    found: dict[str, RequestHistory] = {}
    for entry in missing:
        if entry["record"] and "erasure" in entry["record"]:
            found.setdefault(entry["record"]["erasure"], RequestHistory()).add(entry["record"])
    return found


def new_request(session: Session, id: str, filed: Mapping[str, Any], **columns: Any) -> Erasure:
    """A request as its leaf `filed` describes it. `columns` are those that the journal has."""
    dates = {name: moment(filed[name]) for name in ("received_at", "due_at")}
    made = {"requested_by": filed["actor"]["id"], "created_at": moment(filed["at"])}
    erasure = Erasure(**{**made, **columns, **dates, "id": id, "token": filed["subject_token"]})
    session.add(erasure)
    return erasure


def add_identifiers(session: Session, id: str, subjects: Mapping[str, bytes | None], restriction: bool = False) -> bool:
    """Add the identifiers of a request, by token, that it does not have yet; returns whether there were any."""
    new = [token for token in subjects if session.get(Identifier, (id, token)) is None]
    for token in new:
        session.add(Identifier(erasure_id=id, token=token, subject=subjects[token], restriction=restriction))
    session.flush()
    return bool(new)


def complete_again(
    session: Session, erasure: Erasure | None, id: str, receipt: Receipt, history: RequestHistory
) -> Erasure:
    """Restore a completed request with the dates on its receipt. The person's data may be in the database again."""
    report = receipts.read_statement(receipt)["predicate"]
    if erasure is None:
        dates = {name: report[name] for name in ("received_at", "due_at")}
        filed = {"subject_token": report["subject_token"], "at": report["received_at"]}
        filed |= history.last.get(RecordKind.FILED, history.last[RecordKind.COMPLETED])
        erasure = new_request(session, id, {**filed, **dates})
        session.flush()
    else:
        for part, _ in decisions.lock(session, erasure):
            state_machine.take_over(part, ErasureState.COMPLETED)
    add_identifiers(session, id, dict.fromkeys(history.tokens))
    end(session, erasure, ErasureState.COMPLETED, moment(report["completed_at"]))
    erasure.received_at, erasure.due_at = moment(report["received_at"]), moment(report["due_at"])
    erasure.receipt = receipt.number
    session.flush()
    return erasure


def end(session: Session, erasure: Erasure, state: ErasureState, at: datetime) -> None:
    """Take over the state in which a request had ended before the restore."""
    state_machine.take_over(erasure, state)
    erasure.completed_at = at
    erasure.reason = erasure.extension = None
    session.flush()
    forget_subjects(session, erasure)
    journal.update_request(session, erasure.id)


def repeat(session: Session, erasure: Erasure, subjects: list[bytes], secret: bytes, by: str) -> list[str]:
    """File a completed erasure again, with the original dates; returns the id of the new one.

    If the person has other open requests, these are joined, and keep their dates. A held one is approved, unless a
    second person must do so: then it waits, and can no longer be refused.
    """
    owners = owners_of(session, subjects)
    groups: dict[str | None, list[bytes]] = {}
    for subject in subjects:
        groups.setdefault(owners.get(subject), []).append(subject)
    begun = []
    for owner, [first, *aliases] in groups.items():
        filing = RequestDetails(
            first,
            REASON,
            erasure.received_at if owner is None else None,
            aliases=tuple(aliases),
            due_at=erasure.due_at,
            repeats=erasure.id,
        )
        new = receive(session, filing, secret, by)
        log.record(session, RecordKind.REPLAYED, by, new.id, of=erasure.id, receipt=erasure.receipt)
        # the request that is repeated was approved, the one that it joins may not be
        if new.state is ErasureState.HELD and (owner is None or not state_changes.needs_second_person(session)):
            decisions.approve_again(session, new, by)
        begun.append(new.id)
    return begun


def undo_again(
    session: Session, erasure: Erasure | None, id: str, history: RequestHistory, state: ErasureState
) -> None:
    """Restore a request that was refused, withdrawn or lifted; examples that it had taken out of force at the time of
    the backup return."""
    ended = next(history.last[kind] for kind, named in UNDOINGS.items() if named is state)
    if erasure is None:
        assert history.begun is not None
        erasure = new_request(session, id, history.begun)
        parts, subjects = list[tuple[Part, Model | None]](), list[bytes]()
    else:
        parts, subjects = decisions.lock(session, erasure), subjects_of(session, erasure)
    for part, _ in parts:
        state_machine.take_over(part, state)
    end(session, erasure, state, moment(ended["at"]))
    add_identifiers(session, id, dict.fromkeys(history.tokens), restriction=state is ErasureState.LIFTED)
    decisions.put_back(session, parts, subjects, erasure.request_id)
    update_dates(erasure, history)
    erasure.refusal = ended["reason"] if state is ErasureState.REFUSED else None
    session.flush()


def reopen(
    session: Session,
    erasure: Erasure | None,
    id: str,
    history: RequestHistory,
    details: Mapping[str, Any],
    people: Mapping[str, bytes],
) -> None:
    """Restore a request that was open, or what was decided about it, and take the person's examples out of force."""
    columns, hashes = decode_request(details.get("columns", {})), details.get("subjects", {})
    columns.pop("id", None)
    known = {token: bytes.fromhex(text) for token, text in hashes.items() if text is not None}
    subjects = {token: known.get(token) or people.get(token) for token in history.tokens}
    restriction = RecordKind.RESTRICTED in history
    if erasure is None:
        assert history.begun is not None
        erasure = new_request(session, id, history.begun, **columns)
        waits = ErasureState.HELD if RecordKind.HELD in history else ErasureState.UNMATCHED
        state = ErasureState.RECEIVED if history.is_approved else waits
        state_machine.take_over(erasure, ErasureState.RESTRICTED if restriction else state)
        session.flush()
        add_identifiers(session, id, subjects, restriction)
    else:
        grown = add_identifiers(session, id, subjects, erasure.state is ErasureState.RESTRICTED)
        decide_again(session, erasure, history, grown)
    update_dates(erasure, history)
    if RecordKind.EXTENDED in history:
        erasure.extension = columns.get("extension") or erasure.extension or "The reason was lost by a restore."
    session.flush()
    resolve(session, erasure)


def decide_again(session: Session, erasure: Erasure, history: RequestHistory, grown: bool) -> None:
    """Hold or approve a request as was decided after the backup.

    `grown` requests have new identifiers: if a second person must approve these and nobody has, they are held too.
    """
    if erasure.state is ErasureState.RESTRICTED:
        return
    parts = decisions.lock(session, erasure)
    if history.is_approved:
        if erasure.state in (ErasureState.HELD, ErasureState.UNMATCHED):
            state_machine.take_over(erasure, ErasureState.RECEIVED)
            decisions.carry_out(session, erasure, parts)
    elif history.decision is RecordKind.HELD or (grown and state_changes.needs_second_person(session)):
        state_machine.take_over(erasure, ErasureState.HELD)
        for part, _ in parts:
            state_machine.take_over(part, ErasureState.HELD)
            part.error = None
        session.flush()
        journal.update_request(session, erasure.id)


def update_dates(erasure: Erasure, history: RequestHistory) -> None:
    """Take over the dates of the last filing and of an extension."""
    filed, extended = history.begun, history.last.get(RecordKind.EXTENDED)
    if filed is not None:
        erasure.received_at = moment(filed["received_at"])
    newest = max((r for r in (filed, extended) if r is not None), key=lambda record: record["at"], default=None)
    if newest is not None:
        erasure.due_at = moment(newest["due_at"])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def read_receipt(
    session: Session, store: Store, record: Mapping[str, Any], missing: Sequence[Acknowledgement]
) -> Receipt:
    """Read a receipt from the store. Raises Conflict if its file was altered, or signed with an unknown key."""
    number, name = record["receipt"], receipts.name_of(record["receipt"])
    content = files.read_file(store, name) or {}
    known = configured_keys(session.info["settings"])
    known |= {key.key_id: key.public_key for key in session.scalars(select(SigningKey))}
    known |= {
        made["key_id"]: made["public_key"] for made in restored_leaves.records_of(missing, RecordKind.KEY_ROTATED)
    }
    try:
        payload = base64.b64decode(content["payload"], validate=True)
        [signature] = content["signatures"]
        receipt = Receipt(
            number=number,
            erasure_id=record["erasure"],
            leaf=content["leaf"],
            payload=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            signature=signature["sig"],
            key_id=signature["keyid"],
            head=content["head"],
        )
        json.loads(payload)
        signed = is_signature(pae(receipts.PAYLOAD_TYPE, payload), receipt.signature, known[receipt.key_id])
    except (KeyError, TypeError, ValueError):
        raise restored_leaves.damaged(name) from None
    if not signed or receipt.sha256 != record["statement"]:
        raise restored_leaves.damaged(name)
    return receipt
