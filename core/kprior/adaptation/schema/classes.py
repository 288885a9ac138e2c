"""Other classes, estimated from the memory, whose rows represent all examples.

Added, removed or merged classes change every output, so no sum remains exact. The sums here are estimates, from which a
pass starts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from core.kprior.adaptation.recentre import recentre
from core.kprior.adaptation.schema.networks import transplant_network
from core.kprior.adaptation.schema.untransferable import Untransferable
from core.kprior.adaptation.schema.wide_classes import change_wide_classes
from core.kprior.certificate.anchored_model import exact_rows
from core.kprior.curvature import Full, glm_hessian, is_wide
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Data, Examples
from core.kprior.data.label_sets import convert_label_sets
from core.kprior.memory.memory import remember
from core.kprior.model.families import Labels
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.model.spec import values_of
from core.kprior.objective.tasks import ChangeTarget
from core.kprior.state import State, align
from core.kprior.state.anchor import Anchor


def change_target(
    state: State, memory: Examples, task: ChangeTarget, new: Predictor, regularizer: L2, added: Sequence[Data] = ()
) -> tuple[State, Examples]:
    """The state in terms of other classes; added examples determine the weights of new classes of a wide model."""
    old = state.predictor
    if isinstance(new.family, Labels):
        return change_labels(state, memory, task, new, regularizer)
    K = old.family.outputs
    rows = replace(memory, y=convert_labels(memory.y, task))
    C = class_weights(task, K).to(old.device)
    shift = torch.zeros(len(C), dtype=torch.float64, device=old.device)
    fresh = (C != 0).sum(1) == 0
    shift[fresh] = -math.log(max(2, state.count))  # a class without examples
    shift[~fresh] = (C[~fresh] != 0).sum(1).double().log() if K > 1 else 0.0
    if is_wide(new):
        kept = align(state, memory)
        rows = replace(kept, y=convert_labels(kept.y, task))
        return change_wide_classes(state, rows, new, regularizer, C, shift, added), rows
    if not (old.linear and isinstance(state.curvature, Full)):
        if old.linear:
            raise Untransferable("it does not carry the curvature that this change requires")
        surrogate = Surrogate.zeros(new)
        made = transplant_network(state, rows, new, regularizer, surrogate, classes=C, shift=shift)
        if surrogate is not None:
            scale, own = state.count / max(1, len(rows)), new.weigh(rows)
            surrogate.add(new, made.w, rows.x, torch.full((len(rows),), scale) if own is None else scale * own)
        return made, rows
    state = recentre(state, memory)
    kept = align(state, memory)
    rows = replace(kept, y=convert_labels(kept.y, task))
    anchor, v = state.anchor, state.memory.weight.double()
    assert isinstance(anchor.curvature, Full)
    W = C @ anchor.w.view(K, -1)
    W[:, -1] += shift
    w = W.reshape(-1)
    before, after = exact_rows(old, anchor.w, kept), exact_rows(new, w, rows)
    v = v if before.weight is None else v * before.weight
    E = C.sign()  # from old means, less a constant, to new ones
    h0 = old.family.mean(before.f0) @ E.T
    if K == 1:
        h0 = h0 + (E.T < 0)
    D = after.phi.shape[1]
    gradient = E @ anchor.gradient.view(K, -1) + (v[:, None] * (new.family.mean(after.f0) - h0)).T @ after.phi
    # A few rows that represent many may have more curvature in some direction than all rows have. Their curvature for
    # the new classes counts in full nevertheless.
    known = Full(anchor.curvature.matrix - glm_hessian(before.phi, old.family, before.f0, v))
    known.clip()
    G = torch.einsum("ak,kdle,bl->adbe", E, known.matrix.view(K, D, K, D), E).reshape(new.size, new.size)
    curvature = Full(G + glm_hessian(after.phi, new.family, after.f0, v))
    remembered = remember(new, w, rows, state.memory.weight, state.memory.generation)
    surrogate = Surrogate.zeros(new)
    if surrogate is not None:
        surrogate.add(new, w, rows.x, v)
    anchored = Anchor(w, gradient.reshape(-1), curvature)
    return State(new, regularizer, state.regularizer_spec, w, anchored, remembered, state.count, surrogate), rows


def change_labels(
    state: State, memory: Examples, task: ChangeTarget, new: Predictor, regularizer: L2
) -> tuple[State, Examples]:
    """The state in terms of other labels: each label keeps its sums, and those of a new one come from the memory."""
    old, K = state.predictor, new.family.outputs
    if not isinstance(state.curvature, Full):
        raise Untransferable("it does not carry the curvature that this change requires")
    state = recentre(state, memory)
    kept = align(state, memory)
    rows = replace(kept, y=convert_label_sets(kept.y, task.classes, K))
    anchor = state.anchor
    assert isinstance(anchor.curvature, Full)
    W, gradient = anchor.w.view(old.family.outputs, -1), anchor.gradient.view(old.family.outputs, -1)
    D = W.shape[1]
    places = [(before, int(after)) for before, after in enumerate(task.classes) if not math.isnan(after)]
    moved, slope = W.new_zeros(K, D), W.new_zeros(K, D)
    moved[:, -1] = -math.log(max(2, state.count))  # labels without examples
    for before, after in places:
        moved[after] = W[before]
    w, v = moved.reshape(-1), state.memory.weight.double()
    exact = exact_rows(new, w, rows)
    v = v if exact.weight is None else v * exact.weight
    slope += (v[:, None] * (new.family.mean(exact.f0) - exact.y)).T @ exact.phi
    blocks = glm_hessian(exact.phi, new.family, exact.f0, v).view(K, D, K, D)
    known = anchor.curvature.matrix.view(old.family.outputs, D, -1, D)
    for before, after in places:
        slope[after], blocks[after, :, after] = gradient[before], known[before, :, before]
    surrogate = Surrogate.zeros(new)
    if surrogate is not None:
        surrogate.add(new, w, rows.x, v)
    remembered = remember(new, w, rows, state.memory.weight, state.memory.generation)
    anchored = Anchor(w, slope.reshape(-1), Full(blocks.reshape(K * D, K * D)))
    return State(new, regularizer, state.regularizer_spec, w, anchored, remembered, state.count, surrogate), rows


def class_weights(task: ChangeTarget, outputs: int) -> Tensor:
    """(K_new, K_old) from old outputs to new ones."""
    K = len(values_of(task.target))
    if outputs == 1:  # the output of a binary model is the difference of two outputs
        C = torch.zeros(K, 1, dtype=torch.float64)
        C[int(task.classes[0]), 0], C[int(task.classes[1]), 0] = -0.5, 0.5
        return C
    C = torch.zeros(K, outputs, dtype=torch.float64)
    for before, after in enumerate(task.classes):
        if not math.isnan(after):
            C[int(after), before] = 1
    return C / C.sum(1, keepdim=True).clamp(min=1)


def convert_labels(y: Tensor, task: ChangeTarget) -> Tensor:
    """Targets of old rows in terms of the new classes: (n, K_old) -> (n, K_new)."""
    codes = y.argmax(1) if y.shape[1] > 1 else y[:, 0].round().long()
    found = torch.tensor(task.classes, dtype=torch.float64)[codes.cpu()]
    if bool(found.isnan().any()):
        raise Untransferable("examples of a class that is gone are remembered")
    return torch.nn.functional.one_hot(found.long(), len(values_of(task.target))).to(y)
