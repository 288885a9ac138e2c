"""Removals that include quarantined examples: by name, by source (undoing a load), or by range of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.ledger import journal, unlabelled_examples
from core.ledger.quarantine import is_quarantined, release_matching
from core.ledger.queries import batched
from core.ledger.removals import Removed, record, remove, take_out_matching
from core.ledger.restrictions import lift_restrictions
from core.tables.ledger import Example, PendingExample
from core.tables.models import Model


def remove_named(
    session: Session, model: Model, column: InstrumentedAttribute[Any], names: Sequence[str], stored: Sequence[Any]
) -> Removed:
    """Remove the examples whose `column` (id or subject) is among `stored`, the stored forms of `names`."""
    journal.note_removal(session, model, column.key, stored)
    known, released = set[Any](), 0
    for some in batched(list(dict.fromkeys(stored))):
        selected = column.in_(some)
        known |= lift_restrictions(session, model, column, selected)
        known.update(session.scalars(select(column).where(is_quarantined(model), selected)))
        released += release_matching(session, model, selected)
    waiting = unlabelled_examples.remove(session, model, column.key, stored)
    known |= waiting.keys()
    released += sum(waiting.values())
    removed = remove(session, model, column, names, stored)
    removed.removal.removed += released
    there = {name for name, value in zip(names, stored, strict=True) if value in known}
    unknown = [name for name in removed.unknown if name not in there]
    removed.removal.unknown = len(unknown)
    return replace(removed, unknown=unknown)


def remove_source(session: Session, model: Model, source: str) -> Removed:
    """Remove the examples of a source: those in force, in quarantine, and without a label."""
    journal.note_removal(session, model, Example.source.key, [source])
    in_force, others = take_out_selected(session, model, Example.source == source)
    removed = in_force + others + unlabelled_examples.drop(session, model.id, PendingExample.source == source)
    return record(session, model, removed, [] if removed else [source], changed=in_force > 0)


def remove_span(session: Session, model: Model, first: int, last: int) -> Removed:
    """Remove the examples that were added at a range of positions: those in force and those in quarantine."""
    journal.note_span(session, model, first, last)
    in_force, others = take_out_selected(session, model, Example.position.between(first, last))
    return record(session, model, in_force + others, [], changed=in_force > 0)


def take_out_selected(session: Session, model: Model, selected: ColumnElement[bool]) -> tuple[int, int]:
    """Remove the examples that satisfy a condition; returns how many were in force, and how many in quarantine.

    If a held erasure request took some of them out of force, refusing the request does not restore them.
    """
    lift_restrictions(session, model, Example.position, selected)
    released = release_matching(session, model, selected)
    return take_out_matching(session, model, selected), released
