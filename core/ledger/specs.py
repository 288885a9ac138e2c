"""The spec of a model, which changes as its examples do."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import Conflict, Invalid, NotFound
from core.ledger import positions
from core.ledger.positions import Counts
from core.models.schema_changes import plain_part
from core.tables.ledger import Change, ChangeKind, Example
from core.tables.models import Model

if TYPE_CHECKING:  # the scheduler does without torch
    from core.kprior.model.spec import Input, Spec, SpecPart, TableInput, Target
    from core.ledger.layouts import Layout


def spec_at(session: Session, model_id: int, spec: Spec, at: int) -> Spec:
    """The spec in force at a position: as created, with the changes up to there."""
    return specs_at(session, model_id, spec, [at])[at]


def specs_at(session: Session, model_id: int, spec: Spec, positions: Collection[int]) -> dict[int, Spec]:
    """The specs in force at some positions, read at once."""
    last = max(positions, default=0)
    changes = select(Change).where(Change.model_id == model_id, Change.value.is_not(None), Change.last <= last)
    found = session.scalars(changes.order_by(Change.last)).all()
    values = [(c.last, c.kind.value, plain_part(c.value)) for c in found if c.value is not None]

    def at_position(at: int) -> Spec:
        return cast("Spec", {**spec, **{kind: value for last, kind, value in values if last <= at}})

    return {at: at_position(at) for at in set(positions)}


def layout_at(session: Session, model_id: int, at: int) -> Layout:
    """The layout of examples at a position."""
    from core.ledger.layouts import Layout  # it imports torch, which most callers of this module do not need

    spec = session.scalars(select(Model.spec).where(Model.id == model_id)).one()
    return Layout.at(session, model_id, spec_at(session, model_id, spec, at), at)


def part_of(spec: Spec, kind: ChangeKind) -> SpecPart:
    """The part of a spec that a change of this kind replaces."""
    if kind is ChangeKind.LOSS:
        from core.kprior.model.spec import loss_of

        return loss_of(spec)
    return cast("dict[str, SpecPart]", spec)[kind.value]


def with_part(spec: Spec, kind: ChangeKind, value: SpecPart) -> Spec:
    """The spec after a change."""
    return cast("Spec", {**spec, kind.value: plain_part(value)})


def page_changes(session: Session, model: Model, before: int, limit: int) -> list[Change]:
    """The last changes of a model's spec, and corrections of examples, before a position, the newest first."""
    ours = select(Change).where(Change.model_id == model.id, Change.last < before)
    ours = ours.order_by(Change.last.desc()).limit(limit)
    # each has an index of its own, among the many batches that are neither
    found = [*session.scalars(ours.where(Change.value.is_not(None)))]
    found += session.scalars(ours.where(Change.kind == ChangeKind.REPLACED))
    return sorted(found, key=lambda change: change.last, reverse=True)[:limit]


def value_before(session: Session, model: Model, position: int) -> tuple[ChangeKind, SpecPart]:
    """What a change of the spec changed, and what that was before: reverting it makes it so again."""
    there = select(Change).where(Change.model_id == model.id, Change.first <= position, Change.last >= position)
    change = session.scalar(there)
    if change is None:
        raise NotFound("change_not_found", f"The ledger has no position {position}; its last one is {model.head}.")
    if change.value is None:
        message = f"position {position} is an example {change.kind.value}: only changes of the model can be reverted"
        raise Invalid.at(("revert",), "change_irreversible", message)
    before = part_of(spec_at(session, model.id, model.spec, position - 1), change.kind)
    if before == part_of(spec_at(session, model.id, model.spec, model.head), change.kind):
        raise Conflict("change_reverted", f"The {change.kind.value} is already what it was before position {position}.")
    if change.kind is ChangeKind.INPUT:
        from core.kprior.data.conversion import Inconvertible, reverted_input

        try:
            return change.kind, reverted_input(cast("TableInput", before), cast("TableInput", change.value))
        except Inconvertible as error:
            raise Invalid.at(("revert",), "change_irreversible", f"position {position}: {error}") from error
    return change.kind, before


def change_spec(session: Session, model: Model, kind: ChangeKind, value: SpecPart) -> int:
    """Record a new part of a locked model's spec; returns the position of the change.

    Raises
    ------
    Invalid
        If examples that are in force could not be read any more.
    """
    spec = spec_at(session, model.id, model.spec, model.head)
    if kind in (ChangeKind.INPUT, ChangeKind.TARGET):
        check_change(session, model, kind, part_of(spec, kind), value)
    if kind is ChangeKind.TARGET:
        check_class_weights(spec, cast("Target", value))
    last = positions.take(session, model, kind, 1, Counts(), value)
    if kind in (ChangeKind.INPUT, ChangeKind.TARGET):
        model.layout = last
    return last


def check_change(session: Session, model: Model, kind: ChangeKind, before: SpecPart, value: SpecPart) -> None:
    """Whether the rows of a model can follow a change of its input or target."""
    from core.kprior.data.conversion import Inconvertible, input_conversion, target_conversion
    from core.kprior.model.spec import values_of

    try:
        if kind is ChangeKind.INPUT:
            input_conversion(cast("Input", before), cast("Input", value))
            return
        classes = target_conversion(cast("Target", before), cast("Target", value))
    except Inconvertible as error:
        raise Invalid.at((kind.value, *error.location), f"{kind.value}_incompatible", str(error)) from error
    gone = [code for code, after in enumerate(classes or ()) if math.isnan(after)]
    if gone and has_classes(session, model, gone):
        named = ", ".join(repr(values_of(cast("Target", before))[code]) for code in gone[:3])
        message = f"there are examples of {named}: remove them before, or say in `merge` what they are now"
        raise Invalid.at((kind.value, "values"), "class_in_use", message)


def check_class_weights(spec: Spec, target: Target) -> None:
    """Invalid, if examples of a class would count more or less under its new name: all sums over them would change."""
    from core.kprior.data.conversion import target_conversion
    from core.kprior.model.spec import class_weights, values_of

    classes = target_conversion(spec["target"], target)
    if "class_weight" not in spec:
        return
    old, new = values_of(spec["target"]), values_of(target)
    before, after = (class_weights(each, spec["class_weight"]) for each in (spec["target"], target))
    for code, now in enumerate(range(len(old)) if classes is None else classes):  # None: other names, if anything
        if not math.isnan(now) and before[code] != after[int(now)]:
            message = (
                f"examples of {old[code]!r} count {before[code]:g} times by class_weight, those of {new[int(now)]!r} "
                f"{after[int(now)]:g} times"
            )
            raise Invalid.at(("target", "values"), "class_weight_incompatible", message)


def has_classes(session: Session, model: Model, gone: Sequence[int]) -> bool:
    """Whether examples in force have one of these classes, by their present numbers."""
    steps = layout_at(session, model.id, model.head)
    edges = [0, *steps.positions.tolist(), model.head]
    for age, (after, until) in enumerate(pairwise(edges)):
        before = steps.steps[age].target if age < len(steps.steps) else None
        codes = list(gone) if before is None else [i for i, code in enumerate(before) if code in gone]
        ours = (Example.model_id == model.id, Example.removed.is_(None), Example.y.in_(codes))
        within = (Example.position > after, Example.position <= until)
        if codes and session.scalar(select(Example.position).where(*ours, *within).limit(1)) is not None:
            return True
    return False
