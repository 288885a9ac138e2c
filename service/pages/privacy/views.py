"""What the privacy pages show about a request: its facts, its history with names, and what can be done next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from core.clock import now
from core.erasure import queries
from core.erasure.due_dates import may_extend
from core.erasure.letters import LetterKind, list_letters
from core.erasure.state_changes import has_begun
from core.erasure.statistics import is_extended
from core.register.records import SYSTEM
from core.tables.erasures import OPEN, PENDING, RESTRICTIONS, Erasure, ErasureState, Part
from core.tables.register import RecordKind
from service.context import Context
from service.erasures.schemas import PartResponse, describe_part

UNDECIDED = (ErasureState.HELD, ErasureState.UNMATCHED)
WORDS = {
    RecordKind.FILED: "filed",
    RecordKind.HELD: "held for approval",
    RecordKind.EXTENDED: "due date extended",
    RecordKind.COMPLETED: "completed, receipt issued",
    RecordKind.REPLAYED: "repeated after a restore from a backup",
    RecordKind.PURGED: "a version that had been kept was purged",
    RecordKind.EXPORTED: "evidence exported",
    RecordKind.RESTRICTED: "processing restricted",
    RecordKind.LIFTED: "restriction lifted",
}
"""What a record says, where its kind is not a word that says it."""


@dataclass(frozen=True)
class Step:
    """One line of a request's history."""

    words: str
    by: str
    at: datetime
    note: str | None = None


@dataclass(frozen=True)
class RequestView:
    """A request as the pages show it."""

    id: str
    is_restriction: bool
    state: ErasureState
    reference: str | None
    near_matches: int
    reason: str | None
    received_at: datetime
    due_at: datetime
    is_open: bool
    overdue: bool
    extended: bool
    extension: str | None
    refusal: str | None
    ended_at: datetime | None
    late: bool
    filed_by: str
    filer: str
    """Id of the key that filed the request."""
    parts: Sequence[PartResponse]
    steps: Sequence[Step]
    receipt: int | None
    letters: Sequence[LetterKind]
    actions: Sequence[str]
    """Names of the actions that the state allows."""

    @property
    def examples(self) -> int:
        return sum(part.examples for part in self.parts)


def view_all(session: Session, erasures: Sequence[Erasure]) -> list[RequestView]:
    """The views of several requests, with two queries."""
    parts, records = queries.details_of(session, erasures)
    return [make_view(erasure, parts[erasure.id], records[erasure.id]) for erasure in erasures]


def make_view(erasure: Erasure, parts: Sequence[Part], records: Sequence[Mapping[str, Any]]) -> RequestView:
    steps = [make_step(record) for record in records]
    return RequestView(
        id=erasure.id,
        is_restriction=erasure.state in RESTRICTIONS,
        state=erasure.state,
        reference=queries.reference_in(records),
        near_matches=erasure.near_matches,
        reason=erasure.reason,
        received_at=erasure.received_at,
        due_at=erasure.due_at,
        is_open=erasure.state in PENDING,
        overdue=erasure.is_overdue(now()),
        extended=is_extended(erasure.received_at, erasure.due_at),
        extension=erasure.extension,
        refusal=erasure.refusal,
        ended_at=erasure.completed_at,
        late=erasure.late,
        filed_by=steps[0].by if steps else f"key {erasure.requested_by}",
        filer=erasure.requested_by,
        parts=[describe_part(part) for part in parts],
        steps=steps,
        receipt=erasure.receipt,
        letters=list_letters(erasure),
        actions=list_actions(erasure, parts),
    )


def make_step(record: Mapping[str, Any]) -> Step:
    actor = record["actor"]
    by = "Amend" if actor["id"] == SYSTEM else actor["name"] or f"key {actor['id']}"
    kind = RecordKind(record["kind"])
    note = record["reason"] if isinstance(record.get("reason"), str) else None
    return Step(WORDS.get(kind, kind.value), by, datetime.fromisoformat(record["at"]), note)


def list_actions(erasure: Erasure, parts: Sequence[Part]) -> list[str]:
    """The actions that the state of a request allows, in the order of their buttons."""
    state = erasure.state
    if state is ErasureState.RESTRICTED:
        return ["lift"]
    if state not in PENDING:
        return []
    found = []
    if state in UNDECIDED:
        found.append("approve")
    if state is ErasureState.FAILED:
        found.append("retry")
    if not any(has_begun(part) for part in parts):
        found += ["hold"] if state in OPEN else []
        found += ["refuse", "withdraw"]
    if erasure.extension is None and may_extend(erasure.received_at, now()):
        found.append("extend")
    return found


def needs_second_person(context: Context) -> bool:
    return context.settings.erasure_approval == "second"
