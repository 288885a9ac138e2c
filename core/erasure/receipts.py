"""Receipts of erasures: signed in-toto statements in DSSE envelopes, each with a leaf in the register.

The register makes missing, altered and invented receipts detectable (`verification.py`); this module issues receipts
and reads them.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from typing_extensions import TypedDict  # pydantic cannot read typing.TypedDict before Python 3.12

from core.database import Database, utc_text
from core.erasure import receipt_content
from core.erasure.identifiers import alias_tokens_of
from core.erasure.limits import find_models_outside, write_limits
from core.erasure.queries import trail_of
from core.erasure.receipt_content import ErasureReport, report_json
from core.erasure.receipt_text import write_statement
from core.errors import NotFound
from core.register import files, journal_files, log
from core.register.records import SYSTEM, Acknowledgement, PendingLeaf, new_record
from core.register.signing import Head, pae, signer_of
from core.tables.erasures import Erasure, Part, Receipt
from core.tables.register import Leaf, RecordKind
from core.tables.webhooks import WebhookEvent
from core.versions.store import Store
from core.webhooks.events import emit

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://amend.dev/erasure-receipt/v1"
"""An identifier, not a web page."""


FOLDER = "receipts"


class Signature(TypedDict):
    """A signature of an envelope."""

    keyid: str
    sig: str


class SignedStatement(TypedDict):
    """A DSSE envelope."""

    payloadType: str
    payload: str
    """The in-toto statement, in Base64."""
    signatures: list[Signature]


class Envelope(SignedStatement):
    """A receipt as a DSSE envelope, and its leaf in the register."""

    register: Acknowledgement
    """The leaf `completed`, with its inclusion proof and the head that was signed with it."""


class ReceiptLeaf(PendingLeaf):
    """The leaf `completed`; the receipt is numbered and stored while the register is locked."""

    def __init__(self, session: Session, erasure: Erasure, payload: bytes) -> None:
        sha256 = hashlib.sha256(payload).hexdigest()
        fields = {"erasure": erasure.id, "subject_token": erasure.token, "statement": sha256}
        aliases = alias_tokens_of(session, erasure) or None
        made = new_record(session, RecordKind.COMPLETED, SYSTEM, **fields, alias_tokens=aliases, late=erasure.late)
        super().__init__(made)
        signer = signer_of(session.info["settings"])
        self.erasure = erasure
        self.receipt = Receipt(
            erasure_id=erasure.id,
            leaf=-1,
            payload=payload,
            sha256=sha256,
            signature=signer.sign(pae(PAYLOAD_TYPE, payload)),
            key_id=signer.key_id,
            head={},
        )

    def before_append(self, session: Session) -> None:
        self.receipt.number = self.record["receipt"] = (session.scalar(select(func.max(Receipt.number))) or 0) + 1
        session.add(self.receipt)
        session.flush()

    def after_append(self, session: Session, index: int, head: Head) -> None:
        self.receipt.leaf, self.receipt.head = index, dict(head)
        self.erasure.receipt = self.receipt.number
        emit(
            session,
            WebhookEvent.ERASURE_COMPLETED,
            erasure=self.erasure.id,
            late=self.erasure.late,
            receipt=self.receipt.number,
            sha256=self.receipt.sha256,
            head=dict(head),
        )


def report_of(
    session: Session, erasure: Erasure, parts: Sequence[Part], recognised_until: datetime | None
) -> ErasureReport:
    """The report on an erasure, assembled from the reports of its parts."""
    assert erasure.completed_at is not None
    models = [receipt_content.read(part) for part in parts]
    settings, aliases = session.info["settings"], alias_tokens_of(session, erasure)
    outside = find_models_outside(session)
    return ErasureReport(
        subject_token=erasure.token,
        received_at=utc_text(erasure.received_at),
        due_at=utc_text(erasure.due_at),
        extended=erasure.extension is not None,
        late=erasure.late,
        completed_at=utc_text(erasure.completed_at),
        trail=trail_of(session, erasure),
        found=sum(model.examples for model in models),
        statement=write_statement(models, 1 + len(aliases)),
        models=models,
        alias_tokens=aliases,
        near_matches=erasure.near_matches,
        caseless=settings.caseless_subjects,
        unsearchable=outside.unsearchable,
        toward=outside.toward,
        limits=write_limits(
            settings,
            1 + len(aliases),
            erasure.near_matches,
            models,
            outside,
            log.find_exports(session, [erasure.token, *aliases]),
        ),
        recognised_until=utc_text(recognised_until) if recognised_until else None,
    )


def issue(session: Session, erasure: Erasure, report: ErasureReport) -> None:
    """Sign the receipt of an erasure that is completed in this transaction, and append its leaf."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": list_subjects(session, erasure, report),
        "predicateType": PREDICATE_TYPE,
        "predicate": report_json(report),
    }
    payload = json.dumps(statement, sort_keys=True, ensure_ascii=False).encode()
    log.enqueue(session, ReceiptLeaf(session, erasure, payload))


def list_subjects(session: Session, erasure: Erasure, report: ErasureReport) -> list[dict[str, Any]]:
    """What the statement is about: the request, and the version of each model that no longer depends on the person."""
    found = [(f"erasure/{erasure.id}", log.first_commitment(session, erasure.id).hex())]
    for model in report.models:
        if model.outcome is not None and model.outcome.commitment is not None:
            found.append((f"model/{model.model}/version/{model.outcome.version}", model.outcome.commitment))
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in found]


def find_receipt(session: Session, number: int) -> Receipt:
    """A receipt by its number. Raises NotFound if there is none."""
    receipt = session.get(Receipt, number)
    if receipt is None:
        raise NotFound("receipt_not_found", f"There is no receipt number {number}.")
    return receipt


def page_receipts(session: Session, before: int, limit: int) -> Sequence[Receipt]:
    """Receipts with numbers below `before`, newest first."""
    query = select(Receipt).where(Receipt.number < before).order_by(Receipt.number.desc())
    return session.scalars(query.limit(limit)).all()


def count(session: Session) -> int:
    """The number of receipts."""
    return session.scalar(select(func.count()).select_from(Receipt)) or 0


def envelope_of(session: Session, receipt: Receipt) -> Envelope:
    """The DSSE envelope of a receipt, with the inclusion proof for the head that was signed with it."""
    head = cast(Head, receipt.head)
    found = log.entry(session, session.get_one(Leaf, receipt.leaf), head["size"])
    envelope: Envelope = {**signed_part(receipt), "register": Acknowledgement(**found, head=head)}
    return envelope


def signed_part(receipt: Receipt) -> SignedStatement:
    """The envelope without the leaf, as in the receipt's file."""
    return SignedStatement(
        payloadType=PAYLOAD_TYPE,
        payload=base64.b64encode(receipt.payload).decode(),
        signatures=[Signature(keyid=receipt.key_id, sig=receipt.signature)],
    )


def name_of(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def file_content(receipt: Receipt) -> dict[str, Any]:
    """The content of a receipt's file: what the register does not have."""
    return {**signed_part(receipt), "number": receipt.number, "leaf": receipt.leaf, "head": receipt.head}


def write_files(database: Database, store: Store) -> int:
    """Write missing files of receipts, leaves and the journal to the store; returns the number of leaves.

    Receipts before leaves: a leaf counts as filed once its receipt is. Leaves that another process adds meanwhile are
    left to the next call, because their receipts are not written yet.
    """
    journal_files.write(database, store)
    with database.read() as session:
        leaves = files.unfiled(session)
        indices = [leaf.index for leaf in leaves]
        receipts = session.scalars(select(Receipt).where(Receipt.leaf.in_(indices))).all() if indices else []
    for receipt in receipts:
        content = file_content(receipt)
        there = files.read_file(store, name_of(receipt.number))
        if there is None:
            store.write(name_of(receipt.number), json.dumps(content, indent=2).encode())
    return files.write_missing(database, store, leaves)


def read_statement(receipt: Receipt) -> Mapping[str, Any]:
    """The signed statement."""
    statement: dict[str, Any] = json.loads(receipt.payload)
    return statement


def body_of(receipt: Receipt) -> dict[str, Any]:
    """The receipt as JSON for people and programs that do not verify it: the signed report, and its place."""
    place = {"number": receipt.number, "erasure": receipt.erasure_id}
    signed = {"leaf": receipt.leaf, "key_id": receipt.key_id, "sha256": receipt.sha256}
    return {**place, **read_statement(receipt)["predicate"], **signed}
