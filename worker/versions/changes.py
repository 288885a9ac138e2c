"""What was added, removed and changed since a version, in terms of the model's current schema."""

import math
from dataclasses import dataclass, replace
from functools import reduce

from core.kprior import (
    AddData,
    ChangeInput,
    ChangeLoss,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Cost,
    Data,
    Examples,
    RemoveData,
    State,
    Task,
)
from core.kprior.adaptation.schema import Untransferable, change_schema
from core.kprior.data.schema_conversion import Conversion
from core.kprior.model.spec import frozen_encoder, is_network, loss_of, values_of
from core.kprior.passes.moments import encoder_fits
from core.ledger import passes
from core.ledger.digest import update_digest
from core.ledger.layouts import LayoutChange, Unreadable, recovers_examples, steps_until
from core.ledger.spec_history import layout_at
from core.ledger.untrained_classes import has_all_classes, untrained_classes
from core.tables.versions import Version
from worker.example_reading import Reading
from worker.job_attempt import JobAttempt
from worker.versions.column_units import measure_new_columns
from worker.versions.snapshot import ModelSnapshot, Unadaptable, count_rows


@dataclass(frozen=True)
class Changes:
    """A version, and what was added and removed after it."""

    parent: State
    memory: Examples
    """The rows that the parent's memory refers to."""
    added: Data
    removed: Data
    dataset_digest: str
    """The digest of the examples in force after the changes."""
    cost: Cost
    """Cost of the passes that were needed to find them."""

    @property
    def tasks(self) -> list[Task]:
        return [AddData(self.added), RemoveData(self.removed)]


def changes_since(attempt: JobAttempt, snapshot: ModelSnapshot, tip: Version) -> Changes:
    """The changes after the tip. Raises Unadaptable if they are no longer known, or the tip cannot be adapted."""
    attempt.progress(0.02, "Reading the changes")
    parent = snapshot.load(tip)
    if frozen_encoder(parent.spec) != frozen_encoder(snapshot.spec):
        raise Unadaptable("its encoder changed")
    database, at, cost = snapshot.context.database, snapshot.at, Cost()
    added = passes.load_if_small(passes.read_added(database, snapshot.model_id, snapshot.spec, tip.position, at))
    try:
        removed = passes.load_if_small(
            passes.read_removed(database, snapshot.model_id, snapshot.spec, tip.position, at, tip.removals_position)
        )
    except Unreadable as error:
        raise Unadaptable("examples of a class that no longer exists were removed") from error
    if parent.count + count_rows(added) - count_rows(removed) != snapshot.count:
        raise Unadaptable("examples of the previous version were purged")
    memory = snapshot.load_memory(parent, tip.position)
    network = is_network(snapshot.spec["architecture"])
    change = layout_change(snapshot, tip)
    if not network:
        change = with_first_examples(snapshot, change, tip, parent, added)
    same_rows = change.input is None or change.input.is_identity
    other_schema = not (same_rows and change.target is None and snapshot.has_schema_of(parent))
    if other_schema or (network and loss_of(parent.spec) != loss_of(snapshot.spec)):
        with cost.timed():
            parent, memory = follow_schema(snapshot, change, tip, parent, memory, added)
    else:
        parent = measure_new_columns(snapshot, tip, parent, added)
    if snapshot.erasing or (snapshot.removal and count_rows(removed)):
        cost.data_passes += bool(parent.predictor.encoder.state_dict())
        reading = Reading(attempt, snapshot.in_force(), attempt.progress_within(0.02, 0.05), "Reading the examples")
        if not encoder_fits(parent.predictor.encoder, reading, unscaled=snapshot.imported):
            raise Unadaptable("the units of its columns do not match the remaining examples")
    dataset = update_digest(snapshot.secret, tip.dataset_digest, added, removed)
    return Changes(parent, memory, added, removed, dataset, cost)


def layout_change(snapshot: ModelSnapshot, tip: Version) -> LayoutChange:
    """The conversion of the tip's rows to the model's current columns and classes."""
    with snapshot.context.database.read() as session:
        steps = steps_until(session, snapshot.model_id, snapshot.at, tip.position)
    return reduce(LayoutChange.then, steps) if steps else LayoutChange(tip.position, None, None)


def with_first_examples(
    snapshot: ModelSnapshot, change: LayoutChange, tip: Version, parent: State, added: Data
) -> LayoutChange:
    """The conversion, in which a class that gets its first examples replaces the class without examples of the tip.

    The tip has no meaningful weights for such a class. A new one starts from the weights that separate its examples.
    """
    if snapshot.spec["target"]["kind"] != "classes" or has_all_classes(tip, parent.spec):
        return change
    with snapshot.context.database.read() as session:
        untrained = untrained_classes(session, snapshot.model_id, parent.spec, tip.position)
    places = change.target or tuple(map(float, range(len(values_of(parent.spec["target"])))))
    came = {int(code) for chunk in added for code in chunk.y.argmax(1).unique().tolist()}
    first = {code for code in untrained if places[code] in came}
    if not first:
        return change
    return replace(change, target=tuple(math.nan if code in first else place for code, place in enumerate(places)))


def follow_schema(
    snapshot: ModelSnapshot, whole: LayoutChange, tip: Version, parent: State, memory: Examples, added: Data
) -> tuple[State, Examples]:
    """The tip and its memory, converted to the model's current columns, classes and loss."""
    if whole.input is not None and whole.input.restores:
        raise Unadaptable("a dropped column returned with its values, which its sums do not contain")
    if whole.input is not None and whole.input.adds_values and recovers(snapshot, whole.input, tip):
        raise Unadaptable("a category got a value that earlier examples have, which its sums count as unseen")
    tasks: list[Task] = [AddData(added)]
    if loss_of(parent.spec) != loss_of(snapshot.spec):
        tasks.append(ChangeLoss(loss_of(snapshot.spec)))
    if whole.input is not None and snapshot.spec["input"]["kind"] == "table":
        tasks.append(ChangeInput(snapshot.spec["input"], whole.input))
    if whole.target is not None:
        tasks.append(ChangeTarget(snapshot.spec["target"], whole.target))
    if parent.spec["regularizer"] != snapshot.spec["regularizer"]:
        tasks.append(ChangeRegularizer(snapshot.spec["regularizer"]))
    try:
        parent, memory = change_schema(parent, memory, tasks)
    except Untransferable as error:
        raise Unadaptable(f"its input, target or loss changed: {error}") from error
    if not snapshot.has_schema_of(parent):
        raise Unadaptable("its input or target differs")
    return parent, memory


def recovers(snapshot: ModelSnapshot, conversion: Conversion, tip: Version) -> bool:
    """Whether examples that the tip was trained on have a value that was unseen then, and has been added since."""
    with snapshot.context.database.read() as session:
        layout = layout_at(session, snapshot.model_id, tip.position)
        return recovers_examples(session, snapshot.model_id, layout, conversion, tip.position)


def spec_changes(snapshot: ModelSnapshot, parent: State) -> list[Task]:
    """Changes of the regularizer, the architecture and the loss, as tasks."""
    changes: list[Task] = []
    if loss_of(parent.spec) != loss_of(snapshot.spec):
        changes.append(ChangeLoss(loss_of(snapshot.spec)))
    if parent.spec["regularizer"] != snapshot.spec["regularizer"]:
        changes.append(ChangeRegularizer(snapshot.spec["regularizer"]))
    if parent.spec["architecture"] != snapshot.spec["architecture"]:
        if "trees" in (parent.spec["architecture"]["kind"], snapshot.spec["architecture"]["kind"]):
            raise Unadaptable("the splits of trees must be learnt from all examples")
        changes.append(ChangeModel(snapshot.spec["architecture"]))
        if snapshot.removal is not None:
            raise Unadaptable("certified removal needs a new perturbation for a new architecture")
    return changes
