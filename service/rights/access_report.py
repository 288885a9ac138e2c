"""The access report: the data about a person as a page for people (GDPR Art. 15). The NDJSON export is complete."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session

from core.audit.queries import copies_of
from core.clock import now
from core.erasure.copies import to_copies
from core.erasure.letters import show_date
from core.erasure.receipt_content import Copy
from core.kprior.model.spec import Target
from core.models.policy import policy_of
from core.tables.erasures import RESTRICTIONS, Erasure
from core.tables.models import Model
from core.tracking.formats import describe_target
from core.versions.queries import versions_of
from service.erasures.controller import Sender
from service.erasures.printable_receipts import TEMPLATES
from service.examples.schemas import ExampleResponse

MAX_RECORDS = 200
"""Records of one model on the page; the export has all of them."""
MAX_NUMBERS = 30
"""Numbers of a vector that are shown."""
MAX_COLUMNS = 6
"""Number of values up to which the records are rows of one table."""
STATES = {
    "completed": "completed",
    "refused": "refused",
    "withdrawn": "withdrawn by you",
    "restricted": "in effect",
    "lifted": "lifted",
}


@dataclass(frozen=True)
class Record:
    """One record about the person."""

    id: str
    use: str
    time: datetime | None
    source: str | None
    label: str
    values: dict[str, str]
    prediction: str | None


@dataclass(frozen=True)
class ModelSection:
    """What is stored for one model."""

    model: str
    count: int
    predicts: str
    expires: str | None
    records: Sequence[Record]
    copies: Sequence[Copy]

    @property
    def as_table(self) -> bool:
        return all(len(record.values) <= MAX_COLUMNS for record in self.records)


@dataclass(frozen=True)
class PastRequest:
    """A request of the person."""

    what: str
    received_at: datetime
    state: str
    receipt: int | None


def describe_section(session: Session, model: Model, target: Target, count: int, first: int | None) -> dict[str, Any]:
    """Everything about a model but the records. `first` is the position of the person's first record."""
    versions = [version.number for version in versions_of(session, model.id) if first and version.position >= first]
    found = copies_of(session, model, versions, first, model.head) if first else []
    expire = policy_of(model).expire
    return {
        "model": model.name,
        "count": count,
        "predicts": "one of two outcomes, 0 or 1" if target["kind"] == "binary" else describe_target(target),
        "expires": None if expire is None else str(expire),
        "copies": to_copies(session, found),
    }


def read_records(examples: Iterable[tuple[ExampleResponse, bool]]) -> list[Record]:
    return [to_record(example, in_force) for example, in_force in islice(examples, MAX_RECORDS)]


def show_label(y: object) -> str:
    if isinstance(y, list):
        return ", ".join(map(str, y)) or "none"
    return "not known" if y is None else str(y)


def to_record(example: ExampleResponse, in_force: bool) -> Record:
    if example.y is None:
        use = "stored until its label is known; not used for training"
    elif not in_force:
        use = "not used"
    else:
        use = "used to train the model" if example.split == "train" else "used to test the model"
    predicted = example.prediction
    return Record(
        id=example.id,
        use=use,
        time=example.time,
        source=example.source,
        label=show_label(example.y),
        values=show_values(example.x),
        prediction=None if predicted is None else f"{show_value(predicted.mean)} (version {predicted.version})",
    )


def show_values(x: Any) -> dict[str, str]:
    """The input of an example by name.

    >>> show_values({"age": 39, "job": None}), show_values([0.5, 1.0])
    ({'age': '39', 'job': 'unknown'}, {'values': '0.5, 1'})
    """
    if isinstance(x, dict):
        return {name: show_value(value) for name, value in x.items()}
    return {"values": show_value(x)}


def show_value(value: Any) -> str:
    if value is None:
        return "unknown"
    if not isinstance(value, list):
        return str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if value and isinstance(value[0], list):
        return "an image; its pixels are in the attached file"
    if len(value) > MAX_NUMBERS:
        return f"{len(value)} numbers, which are in the attached file"
    return ", ".join(map(show_value, value))


def describe_request(erasure: Erasure) -> PastRequest:
    what = "restriction of processing" if erasure.state in RESTRICTIONS else "erasure"
    return PastRequest(what, erasure.received_at, STATES.get(erasure.state, "open"), erasure.receipt)


def render(subject: str, sections: Sequence[ModelSection], requests: Sequence[PastRequest], sender: Sender) -> str:
    """The page."""
    return TEMPLATES.get_template("access.html").render(
        subject=subject,
        sections=sections,
        requests=requests,
        sender=sender,
        today=show_date(now()),
        shown=MAX_RECORDS,
    )
