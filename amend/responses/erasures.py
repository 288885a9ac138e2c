"""People who are forgotten: requests, refusals, receipts, and what is stored about a person."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from amend.responses.base import Answer, Failure


class Part(Answer, frozen=True):
    """What an erasure means for one model."""

    model: str
    examples: int
    state: str
    version: int | None = None
    """The version without the person that was promoted."""
    bound: float | None = None
    method: str | None = None
    error: Failure | None = None


class Event(Answer, frozen=True):
    """Something that was done about a request, by the holder of a key."""

    what: str
    by: str
    at: datetime


class Erasure(Answer, frozen=True):
    """A person's request to be forgotten: ``held`` or on its way, then ``completed``, ``failed`` or ``refused``."""

    id: str
    state: str
    received_at: datetime
    due_at: datetime
    completed_at: datetime | None
    models: list[Part]
    receipt: str | None
    overdue: bool = False
    late: bool = False
    """Whether it ended after it was due."""
    extension: str | None = None
    refusal: str | None = None
    trail: list[Event] = []

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "refused")


class Erasures(Answer, frozen=True):
    """Requests that were filed together, in their order."""

    items: list[Erasure]


class Holding(Answer, frozen=True):
    """A model that has examples about a person."""

    model: str
    examples: int


class Lookup(Answer, frozen=True):
    """Where a person is known."""

    models: list[Holding]


class ExportedExample(TypedDict):
    """An example about a person, in force or removed and not deleted yet."""

    model: str
    id: str
    x: Any
    y: int | float | str
    weight: float
    split: str
    position: int
    in_force: bool


class Refusal(Answer, frozen=True):
    """What a person must be told whose request was refused."""

    erasure: str
    received_at: datetime
    refused_at: datetime
    late: bool
    reason: str
    examples: int
    rights: str


class Retried(Answer, frozen=True):
    """Erasures that are tried again."""

    retried: list[str]


class Replayed(Answer, frozen=True):
    """What a restored database has to do again."""

    receipts: int
    erasures: list[str]


class ReceiptModel(TypedDict):
    """What a receipt says of one model; how the model forgot is in ``words``, and figures are beside them."""

    model: str
    examples: int
    words: str


class Receipt(TypedDict):
    """What was done about a request, without a word about who the person is. It may say more than is named here."""

    number: int
    erasure: str
    subject_token: str
    received_at: str
    due_at: str
    extended: bool
    late: bool
    completed_at: str
    found: int
    """Examples."""
    statement: str
    models: list[ReceiptModel]
    previous: str
    """The hash of the receipt before this one."""
    sha256: str


class Flaw(Answer, frozen=True):
    """What is wrong with one receipt."""

    number: int
    problem: str


class Chain(Answer, frozen=True):
    """Whether all receipts are there as they were made; ``last`` is the hash to keep elsewhere."""

    valid: bool
    receipts: int
    last: str | None
    flaws: list[Flaw]
