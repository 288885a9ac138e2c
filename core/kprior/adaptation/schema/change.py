"""A state after changes of its input, target or loss.

`adapt` calls this first. The worker calls it as well, because it also evaluates the result.
"""

from collections.abc import Sequence
from dataclasses import replace

from core.kprior.adaptation.schema.classes import change_target
from core.kprior.adaptation.schema.columns import change_input
from core.kprior.adaptation.schema.feature_maps import inherit_units
from core.kprior.adaptation.schema.losses import change_loss
from core.kprior.adaptation.schema.untransferable import Untransferable
from core.kprior.curvature import is_wide
from core.kprior.data.examples import Examples
from core.kprior.model.families import Labels
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.model.spec import PredictorSpec
from core.kprior.objective.tasks import (
    AddData,
    ChangeInput,
    ChangeLoss,
    ChangeRegularizer,
    ChangeTarget,
    RemoveData,
    Task,
)
from core.kprior.state import State


def change_schema(state: State, memory: Examples, tasks: Sequence[Task]) -> tuple[State, Examples]:
    """The state and the rows of its memory in terms of the new input, target and loss.

    Added examples of the tasks determine the units of new columns, and removed examples enter the sums of a new loss.
    Raises Untransferable if the model must be retrained.
    """
    # Removed rows are given in terms of the new columns and classes, which the state does not have yet.
    same = not any(isinstance(task, (ChangeInput, ChangeTarget)) for task in tasks)
    removed = [task.data for task in tasks if isinstance(task, RemoveData)] if same else []
    added = [task.data for task in tasks if isinstance(task, AddData)]
    for task in tasks:
        if isinstance(task, ChangeLoss):
            state, memory = change_loss(state, memory, task, removed)
    regularizers = [task for task in tasks if isinstance(task, ChangeRegularizer)]
    for task in tasks:
        if isinstance(task, (ChangeInput, ChangeTarget)):
            if state.regularizer.linear is not None:
                raise Untransferable("certified removal needs a new perturbation if the weights change")
            new = new_predictor(state, task, tasks)
            spec = regularizers[-1].regularizer if regularizers else state.regularizer_spec
            try:
                regularizer = regularizer_of(spec, new)
            except ValueError as error:
                raise Untransferable(
                    "the regularizer has a delta for each weight, and the weights have changed"
                ) from error
            state = replace(state, regularizer_spec=spec)
            if isinstance(task, ChangeInput):
                state, memory = change_input(state, memory, task, new, regularizer)
            else:
                state, memory = change_target(state, memory, task, new, regularizer, added)
    return state, memory


def new_predictor(state: State, task: ChangeInput | ChangeTarget, tasks: Sequence[Task]) -> Predictor:
    """The same architecture with another input or target. Columns that stay keep their units."""
    old = state.predictor
    architecture = old.spec["architecture"]
    if architecture["kind"] == "kernel" and isinstance(task, ChangeInput):
        raise Untransferable("its features were drawn for other columns")
    if architecture["kind"] == "trees":
        raise Untransferable("its splits were learnt for other columns or classes")
    if architecture["kind"] == "linear" and "features" in architecture:
        raise Untransferable("its architecture refers to inputs by their index, and the indices have changed")
    part: PredictorSpec = {**old.spec}
    if isinstance(task, ChangeInput):
        part["input"] = task.input
    else:
        part["target"] = task.target
    try:
        new = Predictor(part, device=old.device)
    except (ValueError, RuntimeError) as error:
        raise Untransferable(str(error)) from error
    classes_change = isinstance(task, ChangeTarget) and not isinstance(new.family, Labels)
    if (is_wide(new) or is_wide(old)) and not (classes_change and is_wide(new)):
        raise Untransferable("a model with so many weights does not carry the curvature that this change requires")
    if isinstance(task, ChangeTarget):
        new.inherit(old)
    else:
        inherit_units(old.encoder, new.encoder, task.conversion, state.count, tasks)
    return new
