"""Correcting examples: each is replaced by another with its id, at one position, where the one goes, the other comes.

So at every position exactly one of the two is in force. The caller's transaction holds the lock on the model's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy.orm import Session

from core.errors import Conflict, NotFound
from core.ledger import bulk, positions
from core.ledger.additions import LayoutChanged
from core.ledger.batch import Batch
from core.ledger.positions import Counts
from core.ledger.queries import look_up_in_force
from core.ledger.removals import mark_removed
from core.ledger.specs import layout_at
from core.tables.ledger import ChangeKind, Example
from core.tables.models import Model

if TYPE_CHECKING:
    from core.ledger.layouts import Layout


@dataclass(frozen=True)
class Replaced:
    """The result of a correction."""

    replaced: int
    unchanged: int
    """Examples that were in force already with the same content."""


def replace_examples(session: Session, model: Model, batch: Batch) -> Replaced:
    """Put the examples of a batch in the place of those in force with the same ids, each at a position of its own.

    What is not given stays: the person whom an example is about, how many times it counts, whether it is held out.

    Raises
    ------
    NotFound
        If there is no example in force with one of the ids; nothing is replaced.
    Conflict
        If an id is there twice, or the batch was read by an input or target that is another now.
    """
    if model.layout != batch.layout:
        raise LayoutChanged
    old = find_old(session, model, batch.ids.to_pylist())
    layout = layout_at(session, model.id, model.head)
    subjects = [row.subject if given is None else given for row, given in zip(old, batch.subjects, strict=True)]
    splits = [row.holdout if given is None else given for row, given in zip(old, batch.splits, strict=True)]
    weights = batch.weights_or([row.weight for row in old])
    new = replace(batch, subjects=subjects, splits=splits, weights=np.array(weights))
    contents = zip(new.features, new.y.tolist(), subjects, weights, splits, strict=True)
    changed = [
        i for i, (row, content) in enumerate(zip(old, contents, strict=True)) if content_of(row, layout) != content
    ]
    if changed:
        store(session, model, [old[i] for i in changed], new.take(changed))
    return Replaced(len(changed), len(batch) - len(changed))


def find_old(session: Session, model: Model, ids: Sequence[str]) -> list[Any]:
    """The examples in force with these ids, in their order."""
    content = (Example.x, Example.y, Example.subject, Example.weight, Example.holdout)
    columns = (Example.id, Example.position, *content)
    found = {row.id: row for row in look_up_in_force(session, model.id, Example.id, ids, columns)}
    seen = set[str]()
    for i, id_ in enumerate(ids):
        if id_ not in found:
            raise NotFound.at(("examples", i), "example_not_found", "there is no such example in force")
        if id_ in seen:
            raise Conflict.at(("examples", i), "example_conflict", "the id is in the request already")
        seen.add(id_)
    return [found[id_] for id_ in ids]


def content_of(row: Any, layout: Layout) -> tuple[bytes, float, bytes | None, float, bool]:
    """Everything about an example that a correction can change."""
    y, x = layout.content(row.position, row.y, row.x)
    return x, y, row.subject, 1.0 if row.weight is None else row.weight, row.holdout


def store(session: Session, model: Model, old: Sequence[Any], new: Batch) -> None:
    """Take the old rows out of force, and store the new ones at the positions where that happens."""
    first = mark_removed(session, model, [row.position for row in old])
    holdout = np.array(new.splits, bool)
    held_out = sum(row.holdout for row in old)
    came = Counts.of_new(holdout)
    counts = Counts(came.train - (len(old) - held_out), came.holdout - held_out, removed=len(old))
    positions.take(session, model, ChangeKind.REPLACED, len(old), counts)
    bulk.insert(session, model.id, first, new, holdout)
