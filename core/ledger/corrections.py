"""Correcting examples: an example is removed and another one with the same id is added at the same position.

So exactly one of the two is in force at every position. The caller's transaction holds the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy.orm import Session

from core.errors import Conflict, NotFound
from core.ledger import bulk, journal, positions
from core.ledger.additions import LayoutChanged
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import look_up_in_force
from core.ledger.removals import mark_removed
from core.ledger.returning_subjects import check_treatment, put_aside, report
from core.ledger.spec_history import layout_at
from core.models.policy import policy_of
from core.suppressions import Screen
from core.tables.ledger import ChangeKind, Example
from core.tables.models import Model

if TYPE_CHECKING:
    from core.ledger.layouts import Layout


@dataclass(frozen=True)
class Replaced:
    """The result of a correction."""

    replaced: int
    unchanged: int
    """Examples that were already in force with the same content."""
    quarantined: int = 0
    """New examples in quarantine, because they are now about people whose data was erased."""


def replace_examples(session: Session, model: Model, batch: Batch, screen: Screen | None = None) -> Replaced:
    """Replace the examples in force with those of a batch that have the same ids, each at a position of its own.

    A subject, weight or split that the batch does not give stays as it was, except that an example that gets another
    subject gets the split of that subject. Raises NotFound if no example in force has one of the ids, and Conflict if
    the batch contains an id twice, or the input or target changed after the batch was parsed. Then nothing is replaced.
    """
    if model.layout_position != batch.layout_position:
        raise LayoutChanged
    old = find_old(session, model, batch.ids.to_pylist())
    layout = layout_at(session, model.id, model.head)
    subjects = [row.subject if given is None else given for row, given in zip(old, batch.subjects, strict=True)]
    policy = policy_of(model).holdout_draw
    drawn = replace(batch, subjects=subjects).holdouts(policy).tolist()
    splits = [
        draw if given is not None or (policy.by == "subject" and row.subject != subject) else row.holdout
        for row, subject, given, draw in zip(old, subjects, batch.splits, drawn, strict=True)
    ]
    weights = batch.weights_or([row.weight for row in old])
    times, sources = batch.times_or([row.time for row in old]), batch.sources_or([row.source for row in old])
    new = replace(batch, subjects=subjects, splits=splits, weights=np.array(weights), times=times, sources=sources)
    texts = [None] * len(new) if new.unseen is None else new.unseen
    contents = zip(new.features, texts, new.y.tolist(), subjects, weights, splits, strict=True)
    changed = [
        i for i, (row, content) in enumerate(zip(old, contents, strict=True)) if content_of(row, layout) != content
    ]
    aside: set[int] = set()
    if screen is not None:
        # an example that stays about the same person was accepted before
        others = [None if row.subject == subject else subject for row, subject in zip(old, subjects, strict=True)]
        returning = check_treatment(screen.check_now(session, others), screen.treatment)
        aside = {n for n, i in enumerate(changed) if returning.splits_off(i)}
        report(session, model.id, len(returning.indices.intersection(changed)), len(aside))
    if changed:
        store(session, model, [old[i] for i in changed], new.take(changed), aside)
    return Replaced(len(changed), len(batch) - len(changed), len(aside))


def find_old(session: Session, model: Model, ids: Sequence[str]) -> list[Any]:
    """The examples in force with these ids, in the order of the ids."""
    content = (Example.x, Example.unseen, Example.y, Example.subject, Example.weight, Example.holdout)
    columns = (Example.id, Example.position, *content, Example.time, Example.source)
    found = {row.id: row for row in look_up_in_force(session, model.id, Example.id, ids, columns)}
    seen = set[str]()
    for i, id_ in enumerate(ids):
        if id_ not in found:
            raise NotFound.at(("examples", i), "example_not_found", "no example with this id is in force")
        if id_ in seen:
            raise Conflict.at(("examples", i), "example_conflict", "this id occurs twice in the request")
        seen.add(id_)
    return [found[id_] for id_ in ids]


def content_of(row: Any, layout: Layout) -> tuple[bytes, str | None, float, bytes | None, float, bool]:
    """Everything about an example that a correction can change."""
    y, x, unseen = layout.content(row.position, row.y, row.x, row.unseen)
    return x, unseen, y, row.subject, 1.0 if row.weight is None else row.weight, row.holdout


def store(session: Session, model: Model, old: Sequence[Any], new: Batch, aside: Set[int] = frozenset()) -> None:
    """Remove the old rows, and store the new rows at the positions of these removals.

    The new rows with the indices `aside` go into quarantine.
    """
    first = mark_removed(session, model, [row.position for row in old])
    holdout = np.array(new.splits, bool)
    held_out = sum(row.holdout for row in old)
    came = Counts.of_new(holdout[[i for i in range(len(new)) if i not in aside]])
    gone = Counts(came.train - (len(old) - held_out), came.holdout - held_out, removed=len(old), quarantined=len(aside))
    positions.take(session, model, ChangeKind.REPLACED, len(old), gone)
    bulk.insert(session, model.id, first, new, holdout)
    put_aside(session, model.id, [first + i for i in sorted(aside)])
    journal.note_correction(session, model, new.ids.to_pylist(), first)
