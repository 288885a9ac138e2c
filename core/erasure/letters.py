"""Letters to people about their requests, in plain language.

A letter says only what Amend has recorded. Amend does not know the person's name: the salutation is general, and
whoever sends the letter adds the address.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from core.erasure.receipt_text import RIGHTS
from core.errors import NotFound
from core.register.records import Acknowledgement
from core.tables.erasures import PENDING, Erasure, ErasureState, Part


class LetterKind(StrEnum):
    """What a letter tells the person."""

    CONFIRMATION = "confirmation"
    EXTENSION = "extension"
    COMPLETION = "completion"
    WITHDRAWAL = "withdrawal"
    RESTRICTION = "restriction"
    LIFTING = "lifting"


@dataclass(frozen=True)
class Letter:
    """The text of a letter, without the sender's address."""

    kind: LetterKind
    title: str
    paragraphs: Sequence[str]
    enclosures: Sequence[str] = ()
    acknowledgement: Acknowledgement | None = None
    """Printed on the confirmation: proof that the signed register contains the request."""


@dataclass(frozen=True)
class Circumstances:
    """What letters need besides the request itself."""

    parts: Sequence[Part]
    acknowledgement: Acknowledgement | None
    """None if its record has expired."""
    receipt: Mapping[str, Any] | None
    """The content of the receipt of a completed erasure."""
    lifted_because: str | None = None
    """The reason why a restriction was lifted, if the register still has it."""


def show_date(moment: datetime) -> str:
    """
    >>> show_date(datetime(2026, 3, 1, 9))
    '1 March 2026'
    """
    return f"{moment.day} {moment:%B %Y}"


def list_letters(erasure: Erasure) -> list[LetterKind]:
    """The letters that can be written about a request in its present state."""
    if erasure.state is ErasureState.RESTRICTED:
        return [LetterKind.RESTRICTION, LetterKind.LIFTING]
    if erasure.state is ErasureState.LIFTED:
        return [LetterKind.LIFTING]
    found = [LetterKind.CONFIRMATION]
    if erasure.extension is not None and erasure.state in PENDING:
        found.append(LetterKind.EXTENSION)
    if erasure.state is ErasureState.COMPLETED:
        found.append(LetterKind.COMPLETION)
    if erasure.state is ErasureState.WITHDRAWN:
        found.append(LetterKind.WITHDRAWAL)
    return found


def write_letter(kind: LetterKind, erasure: Erasure, known: Circumstances) -> Letter:
    """Write a letter. Raises NotFound if it does not suit the state of the request."""
    if kind not in list_letters(erasure):
        message = f"There is no letter of this kind for a request that is {erasure.state}."
        raise NotFound("letter_not_found", message)
    return WRITERS[kind](erasure, known)


NOT_FOUND = (
    "So far, we have not found any data under the identifiers you gave us. If you have used other names, addresses or "
    "customer numbers with us, please tell us."
)


def confirm(erasure: Erasure, known: Circumstances) -> Letter:
    if known.acknowledgement is None:
        raise NotFound("letter_not_found", "The register no longer has the record of this request: it has expired.")
    found = bool(known.parts)
    # the last filing, because it may have added identifiers
    filed = (known.acknowledgement["record"] or {}).get("at")
    since = erasure.created_at if filed is None else datetime.fromisoformat(filed)
    used = (
        f"Since {show_date(since)}, no new training has used the data that we found under the "
        "identifiers you gave us. Models that were trained on it earlier stay in use until your request is carried out."
    )
    reply = f"We will reply by {show_date(erasure.due_at)}, as the law requires (GDPR Art. 12(3))."
    if erasure.state in PENDING and erasure.extension is None:
        reply += " If we need more time, we will tell you so and why before that date."
    proof = (
        "The acknowledgement below proves that our signed register contains your request. Please keep it: if the "
        "request were ever missing from the register, you could prove that you made it."
    )
    asked = f"On {show_date(erasure.received_at)}, we received your request to erase your personal data."
    if erasure.state in PENDING:
        paragraphs = [asked, used if found else NOT_FOUND, reply, proof]
    else:
        assert erasure.completed_at is not None
        ended = "completed" if erasure.state is ErasureState.COMPLETED else "closed"
        paragraphs = [asked, f"We {ended} it on {show_date(erasure.completed_at)}.", proof]
    return Letter(
        LetterKind.CONFIRMATION,
        "We have received your request for erasure",
        paragraphs,
        acknowledgement=known.acknowledgement,
    )


def announce_extension(erasure: Erasure, known: Circumstances) -> Letter:
    paragraphs = [
        f"On {show_date(erasure.received_at)}, we received your request to erase your personal data. We cannot "
        "carry it out within one month.",
        f"The reason is: {erasure.extension}",
        f"The law allows us up to two further months (GDPR Art. 12(3)). We will reply by {show_date(erasure.due_at)}. "
        "Until then, no new training uses the data that we found under the identifiers you gave us.",
        RIGHTS,
    ]
    return Letter(LetterKind.EXTENSION, "We need more time for your request", paragraphs)


def announce_completion(erasure: Erasure, known: Circumstances) -> Letter:
    receipt = known.receipt
    assert receipt is not None
    assert erasure.completed_at is not None
    paragraphs = [
        f"On {show_date(erasure.received_at)}, you asked us to erase your personal data. We completed your request on "
        f"{show_date(erasure.completed_at)}.",
        f"The enclosed receipt no. {receipt['number']} summarises the result as follows: “{receipt['statement']}”",
        "The receipt also lists, for each of our models, what was done, what was deleted, what was checked, and what "
        "the erasure does not cover. It does not contain your name: you are identified by a code that only we can "
        "compute.",
    ]
    if until := receipt.get("recognised_until"):
        paragraphs.append(
            f"Until {show_date(datetime.fromisoformat(until))}, we keep a keyed hash of each identifier that we "
            "searched for. It serves only to recognise new data about you, and does not contain the identifier."
        )
    paragraphs.append(RIGHTS)
    enclosures = [f"Receipt of erasure no. {receipt['number']}"]
    return Letter(LetterKind.COMPLETION, "Your request for erasure is completed", paragraphs, enclosures)


def confirm_withdrawal(erasure: Erasure, known: Circumstances) -> Letter:
    assert erasure.completed_at is not None
    paragraphs = [
        f"On {show_date(erasure.received_at)}, you asked us to erase your personal data. You have since withdrawn this "
        f"request, and we closed it on {show_date(erasure.completed_at)}. Nothing was erased.",
    ]
    if sum(len(part.restricted) for part in known.parts):
        paragraphs.append("While your request was open, no new training used your data. From now on, it may be used.")
    paragraphs.append("You can ask for erasure again at any time.")
    return Letter(LetterKind.WITHDRAWAL, "You have withdrawn your request for erasure", paragraphs)


def confirm_restriction(erasure: Erasure, known: Circumstances) -> Letter:
    used = (
        f"We restricted it on {show_date(erasure.created_at)}: since then, no new training uses the data that we found "
        "under the identifiers you gave us. We keep this data. Models that were trained on it earlier stay in use "
        "until they have been adapted without it."
    )
    later = "If we find data under these identifiers later, we will restrict it as well."
    paragraphs = [
        f"On {show_date(erasure.received_at)}, we received your request to restrict the processing of your personal "
        "data (GDPR Art. 18).",
        used if known.parts else f"{NOT_FOUND} {later}",
        "We will tell you before we lift the restriction.",
    ]
    return Letter(LetterKind.RESTRICTION, "The processing of your data is restricted", paragraphs)


def announce_lifting(erasure: Erasure, known: Circumstances) -> Letter:
    since = f"Since {show_date(erasure.created_at)}, the processing of your personal data has been restricted."
    if erasure.state is ErasureState.RESTRICTED:
        told = "We are going to lift this restriction. From then on, our models may be trained on your data again."
        title = "We are going to lift the restriction of processing"
    else:
        assert erasure.completed_at is not None
        told = f"We lifted this restriction on {show_date(erasure.completed_at)}."
        title = "The restriction of processing is lifted"
        if known.lifted_because:
            told += f" The reason is: {known.lifted_because}"
    asked = "If you do not agree, please contact us. You can also ask for the erasure of your data (GDPR Art. 17)."
    return Letter(LetterKind.LIFTING, title, [since, told, asked, RIGHTS])


WRITERS = {
    LetterKind.CONFIRMATION: confirm,
    LetterKind.EXTENSION: announce_extension,
    LetterKind.COMPLETION: announce_completion,
    LetterKind.WITHDRAWAL: confirm_withdrawal,
    LetterKind.RESTRICTION: confirm_restriction,
    LetterKind.LIFTING: announce_lifting,
}
