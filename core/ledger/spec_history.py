"""The spec of a model at a position of its ledger, and changes of the spec."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, or_, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from core.errors import Conflict, Invalid, NotFound
from core.ledger import positions
from core.ledger.positions import Counts
from core.models.schema_changes import compare_columns, plain_part
from core.tables.ledger import Change, ChangeKind, Example
from core.tables.models import Model

if TYPE_CHECKING:  # the scheduler does without torch
    from core.kprior.model.spec import Input, Spec, SpecPart, TableInput, Target
    from core.ledger.layouts import Layout


def spec_at(session: Session, model_id: int, spec: Spec, at: int) -> Spec:
    """The spec in force at a position; `spec` is the one that the model was created with."""
    return specs_at(session, model_id, spec, [at])[at]


def specs_at(session: Session, model_id: int, spec: Spec, positions: Collection[int]) -> dict[int, Spec]:
    """The specs in force at several positions, read at once."""
    last = max(positions, default=0)
    found = session.execute(select_changes(), {"model": model_id, "at": last})
    values = [(last, kind.value, plain_part(value)) for last, kind, value in found if value is not None]

    def at_position(at: int) -> Spec:
        return cast("Spec", {**spec, **{kind: value for last, kind, value in values if last <= at}})

    return {at: at_position(at) for at in set(positions)}


@cache  # building the statement takes longer than running it
def select_changes() -> Select[int, ChangeKind, SpecPart | None]:
    """Query for the changes of a model's spec up to a position, in order: their positions, kinds and values."""
    ours = (Change.model_id == bindparam("model"), Change.value.is_not(None), Change.last <= bindparam("at"))
    return select(Change.last, Change.kind, Change.value).where(*ours).order_by(Change.last)


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
    """The last changes of a model's spec and corrections of examples before a position, newest first."""
    ours = select(Change).where(Change.model_id == model.id, Change.last < before)
    ours = ours.order_by(Change.last.desc()).limit(limit)
    # two queries, because each of the two kinds has a partial index of its own
    found = [*session.scalars(ours.where(Change.value.is_not(None)))]
    found += session.scalars(ours.where(Change.kind == ChangeKind.REPLACED))
    return sorted(found, key=lambda change: change.last, reverse=True)[:limit]


def value_before(session: Session, model: Model, position: int) -> tuple[ChangeKind, SpecPart]:
    """The part of the spec that a change replaced, and its value before, to which a revert restores it."""
    there = select(Change).where(Change.model_id == model.id, Change.first <= position, Change.last >= position)
    change = session.scalar(there)
    if change is None:
        raise NotFound("change_not_found", f"The ledger has no position {position}; its last position is {model.head}.")
    if change.value is None:
        message = f"an example was {change.kind.value} at this position; only changes of the spec can be reverted"
        raise Invalid.at(("revert",), "change_irreversible", message)
    before = part_of(spec_at(session, model.id, model.spec, position - 1), change.kind)
    if before == part_of(spec_at(session, model.id, model.spec, model.head), change.kind):
        raise Conflict("change_reverted", f"The {change.kind.value} is already what it was before position {position}.")
    if change.kind is ChangeKind.INPUT:
        from core.kprior.data.schema_conversion import Inconvertible, reverted_input

        try:
            restorable = find_dropped(session, model)
            return change.kind, reverted_input(cast("TableInput", before), cast("TableInput", change.value), restorable)
        except Inconvertible as error:
            raise Invalid.at(
                ("revert",), "change_irreversible", f"The change at position {position} cannot be reverted. {error}"
            ) from error
    return change.kind, before


def find_dropped(session: Session, model: Model) -> dict[str, int]:
    """The dropped columns that can be restored, each with the position of the change that dropped it."""
    found, before = dict[str, int](), model.spec["input"]
    for position, value in input_changes(session, model):
        for column in value["columns"]:
            if "restores" in column:
                found.pop(column["name"], None)
        found |= dict.fromkeys(compare_columns(before, value)[1], position)
        before = value
    return found


def input_changes(session: Session, model: Model) -> list[tuple[int, TableInput]]:
    """The changes of the input, with their positions, in order."""
    ours = (Change.model_id == model.id, Change.kind == ChangeKind.INPUT, Change.value.is_not(None))
    found = session.execute(select(Change.last, Change.value).where(*ours).order_by(Change.last))
    return [(position, cast("TableInput", value)) for position, value in found]


def restore_columns(session: Session, model: Model, value: SpecPart) -> tuple[SpecPart, list[str]]:
    """A change of the input in which columns that were dropped return with their values; and their names."""
    added = compare_columns(part_of(spec_at(session, model.id, model.spec, model.head), ChangeKind.INPUT), value)[0]
    dropped = find_dropped(session, model) if added else {}
    restored = {name: dropped[name] for name in added if name in dropped}
    if not restored:
        return value, []
    columns = [
        {**column, "restores": restored[column["name"]]} if column["name"] in restored else column
        for column in cast("TableInput", value)["columns"]
    ]
    return cast("SpecPart", {**value, "columns": columns}), list(restored)


def change_spec(session: Session, model: Model, kind: ChangeKind, value: SpecPart) -> int:
    """Record a new part of a locked model's spec; returns the position of the change.

    Raises
    ------
    Invalid
        If examples in force could not be converted to the new input or target.
    """
    spec = spec_at(session, model.id, model.spec, model.head)
    check_soft_labels(session, model.id, spec, with_part(spec, kind, value))
    if kind in (ChangeKind.INPUT, ChangeKind.TARGET):
        check_change(session, model, kind, part_of(spec, kind), value)
    if kind is ChangeKind.TARGET:
        check_class_weights(spec, cast("Target", value))
    last = positions.take(session, model, kind, 1, Counts(), value)
    if kind in (ChangeKind.INPUT, ChangeKind.TARGET):
        model.layout_position = last
    return last


def check_change(session: Session, model: Model, kind: ChangeKind, before: SpecPart, value: SpecPart) -> None:
    """Raise Invalid unless the model's rows can be converted to the new input or target."""
    from core.kprior.data.schema_conversion import Inconvertible, input_conversion, target_conversion
    from core.kprior.model.spec import values_of

    try:
        if kind is ChangeKind.INPUT:
            input_conversion(cast("Input", before), cast("Input", value), inputs_before_changes(session, model))
            return
        classes = target_conversion(cast("Target", before), cast("Target", value))
    except Inconvertible as error:
        raise Invalid.at((kind.value, *error.location), f"{kind.value}_incompatible", str(error)) from error
    gone = [code for code, after in enumerate(classes or ()) if math.isnan(after)]
    if gone and has_classes(session, model, gone):
        named = ", ".join(repr(values_of(cast("Target", before))[code]) for code in gone[:3])
        if cast("Target", before)["kind"] == "labels":
            message = f"examples with the label {named} exist; remove them or correct their labels first"
            raise Invalid.at((kind.value, "values"), "class_in_use", message)
        message = f"examples of {named} exist; remove them first, or map the class to another one with `merge`"
        raise Invalid.at((kind.value, "values"), "class_in_use", message)


def check_soft_labels(session: Session, model_id: int, before: Spec, after: Spec) -> None:
    """Raise Invalid if the model has soft labels, and would have classes or a squared hinge loss, which have none."""
    from core.kprior.model.spec import gives_scores

    if before["target"]["kind"] != "binary" or (after["target"]["kind"] == "binary" and not gives_scores(after)):
        return
    if soft_labels(session, model_id):
        message = "examples have labels between 0 and 1, which only the log and squared losses of a binary target allow"
        raise Invalid.at(
            ("target",) if gives_scores(before) == gives_scores(after) else ("loss",), "soft_labels", message
        )


def soft_labels(session: Session, model_id: int) -> bool:
    """Whether examples of a binary target in force or in quarantine have soft labels."""
    ours = (Example.model_id == model_id, or_(Example.removed.is_(None), Example.quarantine.is_not(None)))
    return session.scalar(select(Example.position).where(*ours, Example.y.not_in((0, 1))).limit(1)) is not None


def has_soft_labels(session: Session, model: Model) -> bool:
    """Whether the target of a model is binary, and some examples have soft labels."""
    target = spec_at(session, model.id, model.spec, model.head)["target"]
    return target["kind"] == "binary" and soft_labels(session, model.id)


def inputs_before_changes(session: Session, model: Model) -> dict[int, Input]:
    """The inputs before each change of the input, by the positions of the changes."""
    found, before = dict[int, "Input"](), model.spec["input"]
    for position, value in input_changes(session, model):
        found[position], before = before, cast("Input", plain_part(value))
    return found


def check_class_weights(spec: Spec, target: Target) -> None:
    """Raise Invalid if the weight of a class would change with its name: all sums over its examples would change."""
    from core.kprior.data.schema_conversion import target_conversion
    from core.kprior.model.spec import class_weights, values_of

    classes = target_conversion(spec["target"], target)
    if "class_weight" not in spec:
        return
    old, new = values_of(spec["target"]), values_of(target)
    before, after = (class_weights(each, spec["class_weight"]) for each in (spec["target"], target))
    for code, now in enumerate(range(len(old)) if classes is None else classes):  # None: at most the names differ
        if not math.isnan(now) and before[code] != after[int(now)]:
            message = (
                f"class_weight gives {old[code]!r} the weight {before[code]:g} and {new[int(now)]!r} the weight "
                f"{after[int(now)]:g}; the class must keep its weight"
            )
            raise Invalid.at(("target", "values"), "class_weight_incompatible", message)


def has_classes(session: Session, model: Model, gone: Sequence[int]) -> bool:
    """Whether examples in force have one of these classes or labels, given as codes of the current target."""
    steps = layout_at(session, model.id, model.head)
    edges = [0, *steps.positions.tolist(), model.head]
    for age, (after, until) in enumerate(pairwise(edges)):
        before = steps.steps[age].target if age < len(steps.steps) else None
        codes = list(gone) if before is None else [i for i, code in enumerate(before) if code in gone]
        ours = (Example.model_id == model.id, Example.removed.is_(None), has_code(steps.labels > 0, codes))
        within = (Example.position > after, Example.position <= until)
        if codes and session.scalar(select(Example.position).where(*ours, *within).limit(1)) is not None:
            return True
    return False


def has_code(labels: bool, codes: Sequence[int]) -> ColumnElement[bool]:
    """Condition on examples: of one of these classes, or with one of these labels, which are bits (`label_sets`)."""
    if not labels:
        return Example.y.in_(codes)
    mask = sum(2**code for code in codes)
    return sql_cast(Example.y, BigInteger).op("&")(mask) != 0
