"""The receipt: a DSSE envelope around an in-toto statement, and its entry in the register."""

import hashlib
from dataclasses import dataclass

from amend.verification.documents import Document, parse
from amend.verification.findings import Refuted, Undecided
from amend.verification.keys import KeyRing
from amend.verification.register import Entry, Head, read_entry

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://amend.dev/erasure-receipt/v1"


@dataclass(frozen=True)
class Statement:
    """What the operator signed: digests of the request and of versions by name, and the report."""

    digest: bytes
    """SHA-256 of the signed bytes."""
    subjects: dict[str, bytes]
    report: Document

    def model(self, name: str) -> Document | None:
        """The report's part about one model."""
        parts = self.report.items("models") if "models" in self.report else []
        found = [part for part in parts if isinstance(part, dict) and part.get("model") == name]
        return Document(found[0], f"the receipt, model {name}") if len(found) == 1 else None


def pre_authentication_encoding(kind: str, payload: bytes) -> bytes:
    """The bytes that a DSSE signature covers.

    >>> pre_authentication_encoding("text", b"hello")
    b'DSSEv1 4 text 5 hello'
    """
    encoded = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(encoded), encoded, len(payload), payload)


def read_statement(envelope: Document, erasure: str) -> Statement:
    """Parse the statement in an envelope, and check that it is about this erasure."""
    if envelope.text("payloadType") != PAYLOAD_TYPE:
        raise Refuted(f"receipt.json: `payloadType` must be {PAYLOAD_TYPE}.")
    payload = envelope.base64("payload")
    statement = Document(parse(payload, "the receipt's payload"), "the receipt's payload")
    for name, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement.text(name) != expected:
            raise Refuted(f"The receipt's payload: `{name}` must be {expected}.")
    subjects: dict[str, bytes] = {}
    for one in statement.items("subject"):
        subject = Document(one, "the receipt's payload: `subject`")
        if subject.text("name") in subjects:
            raise Refuted(f"The receipt's payload names {subject.text('name')} twice.")
        subjects[subject.text("name")] = subject.inner("digest").digest("sha256")
    named = [name for name in subjects if name.startswith("erasure/")]
    if named != [f"erasure/{erasure}"]:
        raise Refuted(f"The receipt is about {', '.join(named) or 'no erasure'}, the bundle about erasure/{erasure}.")
    return Statement(hashlib.sha256(payload).digest(), subjects, statement.inner("predicate"))


def verify_envelope(envelope: Document, ring: KeyRing, covered: bool) -> str:
    """Verify the signature of an envelope: one valid signature with a trusted key is enough."""
    message = pre_authentication_encoding(envelope.text("payloadType"), envelope.base64("payload"))
    signatures = [Document(one, "receipt.json: `signatures`") for one in envelope.items("signatures")]
    problem: Exception = Refuted("receipt.json has no signature.")
    for signature in signatures:
        try:
            return ring.verify(signature.text("keyid"), signature.base64("sig"), message, "the receipt", covered)
        except (Refuted, Undecided) as error:
            problem = error
    raise problem


def verify_registration(envelope: Document, statement: Statement, erasure: str) -> tuple[Entry, Head]:
    """Verify that the register had an entry for this very statement when the receipt was issued."""
    registered = envelope.inner("register")
    head = Head.read(registered.inner("head"))
    entry = read_entry(registered, head)
    if entry.record is None:
        raise Undecided(
            f"The record of entry {entry.leaf} has expired, and with it the link between the register and this receipt."
        )
    if not completes(entry, statement):
        raise Refuted(f"Entry {entry.leaf} of the register does not complete an erasure with this statement.")
    if entry.record.get("erasure") != erasure:
        raise Refuted(f"Entry {entry.leaf} of the register is about a different erasure.")
    return entry, head


def completes(entry: Entry, statement: Statement) -> bool:
    """Whether an entry records the completion of an erasure with this statement."""
    record = entry.record or {}
    return entry.kind == "completed" and record.get("statement") == statement.digest.hex()
