"""Another memory for a trained model, so that methods are compared from the same weights with memories of any size."""

from dataclasses import replace

from core.kprior import Cost, Data, MemoryPolicy, Result, State
from core.kprior.certificate.dense import is_dense
from core.kprior.curvature import is_wide
from core.kprior.memory.memory import MemoryChoice
from core.kprior.state.anchor import hessian_of
from core.kprior.state.measurement import choose_memory, measure


def reselect(state: State, data: Data, policy: MemoryPolicy, seed: int = 0) -> Result:
    """Select the memory anew, by a pass over all examples. The weights stay, and the anchor moves to them."""
    cost = Cost()
    with cost.timed():
        choice = MemoryChoice(policy, policy.size(state.count), seed, state.memory.generation + 1)
        if is_wide(state.predictor):
            memory, rows, _ = choose_memory(state.predictor, state.anchor.w, data, choice, cost)
            return Result(replace(state, memory=memory), rows, cost, True)
        kind = None if state.curvature is None else state.curvature.kind
        near = hessian_of(state.predictor, state.regularizer, state.anchor) if is_dense(state) else None
        measured = measure(state.predictor, state.regularizer, state.w, data, choice, kind, cost, near)
        state = replace(
            state,
            anchor=measured.anchor,
            memory=measured.memory,
            surrogate=measured.surrogate,
            last_layer=measured.last_layer,
        )
    return Result(state, measured.rows, cost, True)
