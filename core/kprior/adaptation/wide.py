"""Adaptation of wide GLMs, such as softmax heads over embeddings, with a thousand to millions of weights.

The anchor is at the weights where the last careful pass measured the gradient; its curvature is an estimate that is
used as a preconditioner only. An adaptation updates the gradient by the added and removed examples, which is exact, and
takes one step. The passes that certify the result (`certificate/wide.py`) continue from there.
"""

import torch
from torch import Tensor

from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.adaptation.result import Result
from core.kprior.certificate.wide_objective import WideObjective
from core.kprior.curvature import Blocks, Diagonal, Kronecker
from core.kprior.curvature.surrogate import change_surrogate
from core.kprior.data.examples import Examples, chunks_of, require_rereadable
from core.kprior.memory.memory import Memory
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.model.predictor import Predictor
from core.kprior.objective.transfer import new_regularizer
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.passes.gradient import Gradient
from core.kprior.passes.rounding_error import feature_blur
from core.kprior.solvers import SolverError
from core.kprior.state import State, align, count_after
from core.kprior.state.anchor import Anchor

MAX_OUTPUT_CHANGE = 4.0
"""The largest change of an output in a step that no pass checks."""


def adapt_wide(request: AdaptationRequest) -> Result:
    """Update the gradient at the anchor and take one preconditioned step from there."""
    cost = Cost()
    with cost.timed():
        new_state, rows = next_state(request, cost)
    return Result(new_state, rows, cost, True)


def next_state(request: AdaptationRequest, cost: Cost) -> tuple[State, Examples]:
    """The state of the new version, and the rows of its memory."""
    state, task_set = request.state, request.task_set
    predictor, anchor = state.predictor, state.anchor
    regularizer = new_regularizer(state, task_set, predictor)
    curvature = None if anchor.curvature is None else anchor.curvature.copy(predictor)
    gradient, rounding, value = anchor.gradient.clone(), anchor.rounding, anchor.value
    turnover = max(anchor.turnover, anchor.value)
    none = torch.zeros(0, dtype=torch.long)
    keys = {-1.0: [none], 1.0: [none]}
    for sign, moved in ((-1.0, task_set.removed), (1.0, task_set.added)):
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
    kept, rows = renew_sample(request, removed_keys, count)
    if curvature is not None and not isinstance(curvature, Blocks):
        # Its factors include examples that may have been removed; they are estimated anew from the memory.
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
        w = anchor.w - step * step_length(predictor, step, [rows, *chunks_of(task_set.added)])
        if not bool(w.isfinite().all()):
            raise SolverError("The weights are no longer finite. Check the examples for extreme values.")
    moved_anchor = Anchor(
        anchor.w, gradient, curvature, anchor.exact, rounding=rounding, value=value, turnover=turnover
    )
    spec = task_set.regularizer or state.regularizer_spec
    removed, added = chunks_of(task_set.removed), chunks_of(task_set.added)
    surrogate = change_surrogate(state.surrogate, predictor, anchor.w, removed, added)
    return State(predictor, regularizer, spec, w, moved_anchor, kept, count, surrogate), rows


def step_length(predictor: Predictor, step: Tensor, at_hand: list[Examples]) -> float:
    """The fraction of a step to take, so that no output at hand changes by more than MAX_OUTPUT_CHANGE."""
    K, widest = predictor.family.outputs, 0.0
    for chunk in (c for c in at_hand if len(c)):
        change = predictor.features(chunk.x) @ step.view(K, -1).T
        widest = max(widest, predictor.family.self_concordance * float(predictor.family.spread(change).max()))
    return min(1.0, MAX_OUTPUT_CHANGE / widest) if widest > 0 else 1.0


def renew_sample(request: AdaptationRequest, removed_keys: Tensor, count: int) -> tuple[Memory, Examples]:
    """The memory after the change: removed examples leave it, and added ones are sampled like the others."""
    state, policy = request.state, request.policy
    stays = ~torch.isin(state.memory.key, removed_keys)
    rows, weight = align(state, request.memory).take(stays), state.memory.weight.cpu()[stays]
    size, seed = policy.size(count), request.training.seed
    selection = MemorySelection(policy, size, state.predictor, state.anchor.w, None, seed)
    return select_again(selection, rows, weight, request.task_set.added, state.memory.generation + 1)
