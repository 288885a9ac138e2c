"""New examples about people whose data was erased: refused, put into quarantine, or accepted with an event.

Which of the three applies is a setting. Quarantined examples are stored at ledger positions of their own but never in
force, until a person accepts or discards them. The caller holds the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import update
from sqlalchemy.orm import Session

from core.errors import Conflict
from core.ledger import bulk, positions
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import batched
from core.suppressions import Screened
from core.tables.ledger import RETURNED, ChangeKind, Example
from core.tables.models import Model
from core.tables.webhooks import WebhookEvent
from core.webhooks.events import emit

MAX_NAMED = 100
"""Maximum number of indices that an error names."""


@dataclass(frozen=True)
class Returning:
    """The examples of a batch about people whose data was erased, as indices."""

    indices: frozenset[int] = frozenset()
    quarantined: bool = False
    """Whether they go into quarantine."""

    def splits_off(self, index: int) -> bool:
        return self.quarantined and index in self.indices


NONE = Returning()


def check_treatment(screened: Screened, treatment: str, field: str = "examples") -> Returning:
    """What happens to the returning examples of a batch; raises Conflict if they are refused."""
    if screened.returning and treatment == "refuse":
        indices = sorted(screened.returning)
        detail = (
            f"{len(indices)} of the {field} are about people whose data was erased, so nothing of the request was"
            " stored. Leave them out; `errors` has their indices."
        )
        message = "is about a person whose data was erased"
        raise Conflict("subject_returned", detail, [((field, i), message) for i in indices[:MAX_NAMED]])
    return Returning(screened.returning, treatment == "quarantine")


def store_aside(session: Session, model_id: int, batch: Batch, holdout: NDArray[np.bool_]) -> tuple[int, int]:
    """Store new examples in quarantine; returns their first and last positions."""
    last = positions.advance(session, model_id, len(batch), ChangeKind.QUARANTINED, Counts(quarantined=len(batch)))
    assert last is not None, "the model is locked"
    first = last - len(batch) + 1
    bulk.insert(session, model_id, first, batch, holdout)
    put_aside(session, model_id, range(first, last + 1))
    return first, last


def put_aside(session: Session, model_id: int, rows: Sequence[int]) -> None:
    """Put the examples that were just stored at some positions into quarantine: they end where they begin."""
    for some in batched(rows):
        aside = update(Example).where(Example.model_id == model_id, Example.position.in_(some))
        session.connection().execute(aside.values(removed=Example.position, quarantine=RETURNED))


def report(session: Session, model_id: int, examples: int, quarantined: int) -> None:
    """Send the event that data of erased people returned. It says nothing about whose."""
    if examples:
        name = session.get_one(Model, model_id).name
        emit(session, WebhookEvent.SUBJECT_RETURNED, model=name, examples=examples, quarantined=quarantined)
