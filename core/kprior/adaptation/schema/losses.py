"""Another loss, estimated from the memory, whose rows represent all examples.

The sums of past rows say nothing about another loss, so the sums here are estimates, from which passes start. With all
examples in memory they are exact.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from core.kprior.adaptation.schema.untransferable import Untransferable
from core.kprior.curvature import Full, is_wide
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Data, Examples, chunks_of, keys_of
from core.kprior.memory.memory import remember
from core.kprior.model.predictor import Predictor
from core.kprior.objective.tasks import ChangeLoss
from core.kprior.passes.loss import Loss
from core.kprior.state import State, align
from core.kprior.state.anchor import Anchor


def change_loss(state: State, memory: Examples, task: ChangeLoss, removed: Sequence[Data]) -> tuple[State, Examples]:
    """The state in terms of another loss, at the same weights. Raises Untransferable if the model must be retrained.

    `removed` examples enter the sums by their own terms, and the memory represents all others, so that subtracting the
    removed examples later is exact.
    """
    old = state.predictor
    try:
        new = Predictor({**old.spec, "loss": task.loss}, device=old.device)
    except ValueError as error:
        why = str(error) if old.linear else "the previous version is a network, which cannot be adapted to another loss"
        raise Untransferable(why) from error
    new.inherit(old)
    if type(new.family) is type(old.family) and vars(new.family) == vars(old.family):
        if old.linear:
            return replace(state, predictor=new), memory
        old.spec["loss"] = task.loss  # the loss of a network stays in its spec
        return state, memory
    if is_wide(old) or not isinstance(state.curvature, Full):
        raise Untransferable("it does not carry the curvature that another loss requires")
    rows, w = align(state, memory), state.w
    stands_for = state.memory.weight.double()
    keys = keys_of(removed)
    stays = (~torch.isin(state.memory.key, keys)).to(stands_for.device)
    stands_for = stands_for * ((state.count - len(keys)) / stands_for[stays].sum().clamp(min=1.0))
    own = new.weigh(rows)
    weight = (stands_for if own is None else stands_for * own) * stays
    seen = Loss(new, w, with_hessian=True)
    phi = new.features(rows.x)
    seen.add_encoded(phi, rows.y.to(phi), weight.to(phi))
    surrogate = Surrogate.zeros(new)
    if surrogate is not None:
        surrogate.add(new, w, rows.x, weight)
    for chunk in chunks_of(removed):
        seen.add(chunk)
        if surrogate is not None:
            surrogate.add(new, w, chunk.x, new.weigh(chunk))
    remembered = remember(new, w, rows, stands_for, state.memory.generation)
    anchor = Anchor(w, seen.gradient, Full(seen.hessian))
    changed = replace(state, predictor=new, anchor=anchor, memory=remembered, surrogate=surrogate)
    return changed, rows
