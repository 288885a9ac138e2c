"""Adaptation of wide GLMs: softmax heads over embeddings, P from a thousand to millions.

The state's anchor is where the last careful pass measured the gradient; its curvature is an estimate that
preconditions and decides nothing. An adaptation changes the gradient by the examples that came and went, which is
exact, and takes one step; the passes that certify it (`certificate/wide.py`) go on from there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.cost import Cost
from core.kprior.curvature import Blocks, Diagonal, Kronecker
from core.kprior.data.encoded import EncodedData
from core.kprior.data.examples import Examples, chunks_of, require_rereadable
from core.kprior.memory.memory import Memory, MemoryPolicy
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.model.predictor import Predictor
from core.kprior.objective.surrogate import change_surrogate
from core.kprior.objective.tasks import Change
from core.kprior.objective.transfer import new_regularizer
from core.kprior.objective.wide import WideObjective
from core.kprior.passes.gradient import Gradient
from core.kprior.passes.rounding_error import feature_blur
from core.kprior.solvers import SolverError, Training
from core.kprior.state import State, align, count_after

MAX_OUTPUT_CHANGE = 4.0
"""How far outputs may move in a step that no pass checks."""


def adapt_wide(
    state: State, memory: Examples, change: Change, policy: MemoryPolicy, training: Training, cost: Cost
) -> tuple[State, Examples]:
    """Change the anchor's gradient by what came and went, and take one step from there."""
    predictor, anchor = state.predictor, state.anchor
    regularizer = new_regularizer(state, change, predictor)
    curvature = None if anchor.curvature is None else anchor.curvature.copy(predictor)
    gradient, rounding, value = anchor.gradient.clone(), anchor.rounding, anchor.value
    turnover = max(anchor.turnover, anchor.value)
    none = torch.zeros(0, dtype=torch.long)
    keys = {-1.0: [none], 1.0: [none]}
    for sign, moved in ((-1.0, change.removed), (1.0, change.added)):
        for chunk in (c for data in moved for c in require_rereadable(data) if len(c)):
            terms = Gradient(predictor, anchor.w, careful=True)
            terms.add(chunk)
            gradient += sign * terms.gradient.reshape(-1)
            phi, y, counts = predictor.features(chunk.x), chunk.y.to(anchor.w), predictor.weigh(chunk)
            rounding += terms.rounding + feature_blur(predictor, phi, y, anchor.w, counts)[0]
            value += sign * terms.value
            turnover += terms.value
            cost.backward_passes += len(chunk)
            keys[sign].append(chunk.key.cpu())
            if isinstance(curvature, Blocks):
                if sign < 0:
                    curvature.forget(chunk.key, phi)
                else:
                    curvature.learn(predictor, anchor.w, chunk.key, phi, counts)
    removed_keys, added_keys = torch.cat(keys[-1.0]), torch.cat(keys[1.0])
    count = count_after(state, removed_keys, added_keys)
    kept, rows = renew_sample(state, memory, removed_keys, change, policy, training, count)
    if curvature is not None and not isinstance(curvature, Blocks):
        # its factors hold sums over examples that may be gone: those that are remembered make them anew
        assert isinstance(curvature, Kronecker | Diagonal)
        curvature = type(curvature).zeros(predictor)
        if len(rows):
            own, scale = predictor.weigh(rows), count / len(rows)
            weight = scale if own is None else own * scale
            curvature.add_features(predictor, anchor.w, predictor.features(rows.x), weight)
    w = anchor.w
    if curvature is not None and anchor.exact:
        objective = WideObjective(predictor, regularizer, EncodedData(predictor, []), cost)
        step = objective.project(curvature.inverse(regularizer.delta)(gradient + regularizer.gradient(anchor.w)))
        w = anchor.w - step * step_length(predictor, step, [rows, *chunks_of(change.added)])
        if not bool(w.isfinite().all()):
            raise SolverError("the weights are not finite any more: check the examples for extreme values")
    sums = {"rounding": rounding, "value": value, "turnover": turnover}
    moved_anchor = Anchor(anchor.w, gradient, curvature, anchor.exact, **sums)
    spec = change.regularizer or state.regularizer_spec
    removed, added = chunks_of(change.removed), chunks_of(change.added)
    surrogate = change_surrogate(state.surrogate, predictor, anchor.w, removed, added)
    return State(predictor, regularizer, spec, w, moved_anchor, kept, count, surrogate), rows


def step_length(predictor: Predictor, step: Tensor, at_hand: list[Examples]) -> float:
    """Which fraction of a step to take: none of the outputs at hand should move so far that curvature means nothing."""
    K, widest = predictor.family.outputs, 0.0
    for chunk in (c for c in at_hand if len(c)):
        change = predictor.features(chunk.x) @ step.view(K, -1).T
        widest = max(widest, predictor.family.self_concordance * float(predictor.family.spread(change).max()))
    return min(1.0, MAX_OUTPUT_CHANGE / widest) if widest > 0 else 1.0


def renew_sample(
    state: State,
    memory: Examples,
    removed_keys: Tensor,
    change: Change,
    policy: MemoryPolicy,
    training: Training,
    count: int,
) -> tuple[Memory, Examples]:
    """The memory after the change: removed examples leave it, added ones are drawn as the others were."""
    predictor = state.predictor
    stays = ~torch.isin(state.memory.key, removed_keys)
    rows, weight = align(state, memory).take(stays), state.memory.weight.cpu()[stays]
    selection = MemorySelection(policy, policy.size(count), predictor, state.anchor.w, None, training.seed)
    return select_again(selection, rows, weight, change.added, state.memory.generation + 1)
