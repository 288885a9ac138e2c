"""What the service answers, as typed objects. The names are those of the REST API.

Fields that this version of the client does not know are passed over, so that it goes on working with a newer
service; words such as states are plain text for the same reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """Base of all answers."""


class Page(Answer, Generic[T], frozen=True):
    """One page of a list; ``next`` is the cursor of the page after it."""

    items: list[T]
    next: str | None = None


class Failure(Answer, frozen=True):
    """Why a job failed, or an erasure in one model."""

    code: str
    detail: str


class Counts(Answer, frozen=True):
    """Examples by where they are."""

    train: int
    holdout: int
    removed: int


class Held(Answer, frozen=True):
    """Since when nothing is adapted, retrained or promoted by itself, why, and the id of the key that asked for it."""

    since: datetime
    why: str
    by: str


class Model(Answer, frozen=True):
    """A model as it stands."""

    name: str
    input: dict[str, Any]
    target: dict[str, Any]
    architecture: dict[str, Any]
    regularizer: dict[str, Any]
    training: dict[str, Any]
    policy: dict[str, Any]
    counts: Counts
    head: int
    """The last position of the ledger."""
    champion: int | None
    """The version that answers predictions."""
    pending: int
    """Changes that the champion does not stand for yet."""
    created_at: datetime
    held: Held | None = None


class Resumed(Model, frozen=True):
    """A model that is not held any more; ``job`` does what waited, and is None if nothing is due."""

    job: str | None = None


class Added(Answer, frozen=True):
    """What came of adding examples. ``duplicates`` were there already, with the same content."""

    accepted: int = 0
    duplicates: int = 0
    first_position: int | None = None
    last_position: int | None = None

    def __add__(self, later: Added) -> Added:
        first = later.first_position if self.first_position is None else self.first_position
        last = self.last_position if later.last_position is None else later.last_position
        return Added(self.accepted + later.accepted, self.duplicates + later.duplicates, first, last)


class Example(Answer, frozen=True):
    """A stored example. Its subject is not shown: only a keyed hash of it is stored."""

    id: str
    x: Any
    y: int | float | str
    split: str
    position: int


class Removed(Answer, frozen=True):
    """What came of a removal; ``job`` makes the model forget, and is None while nothing was ever trained."""

    id: str
    removed: int
    unknown: list[str]
    position: int
    job: str | None


class Removal(Answer, frozen=True):
    """A removal, later: unknown names are counted, not kept."""

    id: str
    model: str
    removed: int
    unknown_count: int
    position: int
    job: str | None
    created_at: datetime


class Changed(Answer, frozen=True):
    """Where a change of the model stands in the ledger, and the job that carries it out."""

    position: int
    job: str | None


class Change(Answer, frozen=True):
    """A change of the model: of its ``kind``, regularizer or architecture, to ``value``."""

    position: int
    kind: str
    value: dict[str, Any]
    created_at: datetime


class Job(Answer, frozen=True):
    """One unit of work: ``queued``, ``running``, then ``succeeded``, ``failed`` or ``cancelled``."""

    id: str
    model: str
    kind: str
    state: str
    progress: float
    message: str
    attempts: int
    error: Failure | None
    from_position: int
    to_position: int
    version: int | None
    """The version it made."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


class Memory(Answer, frozen=True):
    """How much of the past a version remembers."""

    size: int
    fraction: float


class Certificate(Answer, frozen=True):
    """How far a version can be from the retrain that nobody ran; of ``kind`` bound, or measured (networks)."""

    kind: str
    bound: float | None = None
    """Covers |w - w_retrain|."""
    relative: float | None = None
    prediction_bound: float | None = None
    """Covers the change of any holdout prediction."""
    gradient_norm: float | None = None
    passes: float = 0
    audit: dict[str, Any] | None = None
    """What was measured of a network: losses of removed, kept and unseen examples, next to those of doing nothing."""


class Cost(Answer, frozen=True):
    """What making a version cost."""

    backward_passes: float
    data_passes: float
    seconds: float


class Version(Answer, frozen=True):
    """A model state that stands for the ledger up to one position."""

    version: int
    kind: str
    parent: int | None
    position: int
    state: str
    method: str
    memory: Memory
    metrics: dict[str, float | None]
    """On ``rows`` of the holdout; what ends in ``_se`` is the standard error of a figure."""
    certificate: Certificate | None
    cost: Cost
    sha256: str | None
    mlflow: dict[str, str | None] | None
    created_at: datetime
    spec: dict[str, Any] = {}
    """As it was made: input, target, architecture, regularizer."""


class Promoted(Version, frozen=True):
    """The new champion; ``held`` tells whether the model is: promoting an older version holds it."""

    held: Held | None = None


class Promotion(Answer, frozen=True):
    """A version became champion."""

    version: int
    previous: int | None
    by: str
    created_at: datetime


class Sides(Answer, frozen=True):
    """A figure of the adapted version and of the full retrain."""

    adapted: float
    retrained: float
    difference_se: float | None = None
    """The standard error of their difference: the rows are the same."""


class Costs(Answer, frozen=True):
    """The cost of the adapted version and of the full retrain."""

    adapted: Cost
    retrained: Cost


class Comparison(Answer, frozen=True):
    """An adapted version and a full retrain at the same position."""

    position: int
    adapted: int
    retrained: int
    within_tolerance: bool
    created_at: datetime
    accuracy: Sides | None = None
    loss: Sides | None = None
    rows: int | None = None
    disagreement: float | None = None
    disagreement_se: float | None = None
    """Its standard error."""
    weight_distance: float | None = None
    cost: Costs | None = None
    speedup: float | None = None
    worse: str | None = None
    """In which figure the retrained version is worse on the holdout, by more than chance would have it."""
    took_over: bool = False
    """Whether adaptations go on from the retrained version."""
    outcome: str = ""
    """What became of the retrained version, and why."""


class Prediction(Answer, frozen=True):
    """``mean`` for yes/no, numbers and counts; ``class_`` where there are classes."""

    mean: float | None = None
    class_: int | str | None = msgspec.field(default=None, name="class")
    probabilities: dict[str, float] | None = None


class Predictions(Answer, frozen=True):
    """Predictions in the order of the inputs, and the version that made them."""

    version: int
    outputs: list[Prediction]


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


class Key(Answer, frozen=True):
    """A key of the service."""

    id: str
    name: str
    scopes: list[str]
    models: list[str] | None
    created_at: datetime
    last_used_at: datetime | None


class IssuedKey(Key, frozen=True):
    """A new key, with the text to send. It is shown this once."""

    key: str


class Health(Answer, frozen=True):
    """Of one part that the service leans on."""

    ok: bool
    detail: str


class Readiness(Answer, frozen=True):
    """``ready``; ``degraded`` if only the dashboards stand still; ``down`` if work cannot be done."""

    status: str
    database: Health
    broker: Health
    worker: Health
    mlflow: Health
    store: Health | None = None
