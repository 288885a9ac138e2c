"""Training from scratch (Batch), and the one pass that makes a version's state complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.kprior.certificate.certified_removal import Removal
from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, Full, curvature_for
from core.kprior.data.examples import Data, Examples
from core.kprior.data.partitioned import PartitionedData, accumulate
from core.kprior.memory.memory import Memory, MemoryPolicy, Select
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2, regularizer_of
from core.kprior.objective.objective import Objective
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.terms import Term
from core.kprior.passes.moments import fit_encoder
from core.kprior.passes.statistics import Statistics
from core.kprior.solvers import Progress, Solve, Training, Watch, solve
from core.kprior.state import State


@dataclass(frozen=True)
class Result:
    """A new state, the rows that its memory refers to, and what it cost."""

    state: State
    memory: Examples
    cost: Cost
    converged: bool


def train(
    spec: dict[str, Any],
    data: Data,
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    curvature: str | None = "auto",
    encoder_of: State | None = None,
    removal: Removal | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    watch: Watch | None = None,
    solver: Solve = solve,
) -> Result:
    """Minimise sum_i l(y_i, f_i(w)) + R(w) over all of `data`   (paper, Eq. 1).

    `encoder_of` takes over the encoder of an earlier state, and its perturbation, so that both mean the same by a
    weight. `curvature`
    names a backend; "auto" keeps none for networks, whose default method has no use for it. With `removal` the
    objective is perturbed, so that removals from it can be certified. `solver` may solve elsewhere.
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    cost = Cost()
    with cost.timed():
        predictor = Predictor(spec, training.seed, device)
        if encoder_of is None:
            fit_encoder(predictor.encoder, data)
            cost.data_passes += len(predictor.encoder.state_dict()) > 0
        else:
            predictor.encoder.load_state_dict(encoder_of.predictor.encoder.state_dict())
        regularizer = regularizer_of(spec["regularizer"], predictor)
        if removal is not None:
            before = None if encoder_of is None else encoder_of.regularizer.linear
            same = before is not None and before.shape == (predictor.size,)
            regularizer = replace(regularizer, linear=before if same else removal.draw(predictor))
        w = predictor.initial_weights()
        term = Term(predictor, data, past=True)
        linear = torch.zeros_like(w) if regularizer.linear is None else regularizer.linear
        objective = Objective(predictor, regularizer.delta, linear, [term])
        count = term.rows()
        cost.data_passes += not term.cached
        if count == 0:
            raise ValueError("there is nothing to train on: no examples")
        solution = solver(objective, w, training, cost, progress, watch)
        known = None
        if solution.hessian is not None:
            known = Full(solution.hessian - torch.diag(regularizer.delta))
        kind = backend_for(predictor, curvature)
        summary = summarise(
            predictor,
            regularizer,
            solution.w,
            data,
            count,
            policy,
            kind,
            cost,
            seed=training.seed,
            known=known,
        )
    state = State(
        predictor,
        regularizer,
        dict(spec["regularizer"]),
        solution.w,
        summary.gradient,
        summary.curvature,
        summary.memory,
        count,
        summary.surrogate,
    )
    return Result(state, summary.rows, cost, solution.converged)


def backend_for(predictor: Predictor, curvature: str | None) -> str | None:
    """Which curvature a model carries: networks only what they are told to."""
    if curvature is None or (curvature == "auto" and not predictor.linear):
        return None
    return curvature


@dataclass(frozen=True)
class Summary:
    """What one pass over all data finds at given weights."""

    gradient: Tensor
    curvature: Curvature | None
    memory: Memory
    rows: Examples
    surrogate: Surrogate | None


def summarise(
    predictor: Predictor,
    regularizer: L2,
    w: Tensor,
    data: Data,
    count: int,
    policy: MemoryPolicy,
    kind: str | None,
    cost: Cost,
    *,
    seed: int = 0,
    generation: int = 0,
    known: Curvature | None = None,
) -> Summary:
    """g*, G, surrogate and memory at w, in one pass.

    Leverage needs a curvature before the pass: `known` is one that is near enough. Without it there is a second pass.
    """
    if kind == "auto":
        kind = curvature_for(predictor).kind
    late = known is None and (policy.select is Select.LEVERAGE or kind == "full")

    def selection(scored_by: Curvature | None) -> MemorySelection:
        bare = isinstance(data, PartitionedData)
        return MemorySelection(policy, policy.size(count), predictor, w, scored_by, regularizer.delta, seed, bare)

    first = None if late else selection(known)
    look = accumulate(data, Statistics(predictor, w, slope=True, curvature=kind, surrogate=True, selection=first))
    cost.backward_passes += look.count
    cost.data_passes += 1
    selected = look.selection
    if selected is None:
        again = accumulate(data, Statistics(predictor, w, selection=selection(look.curvature)))
        selected = again.selection
        cost.forward_passes += again.count
        cost.data_passes += 1
    assert selected is not None
    memory, rows = selected.take(generation, data.rows if isinstance(data, PartitionedData) else None)
    return Summary(regularizer.gradient(w) + look.gradient, look.curvature, memory, rows, look.surrogate)


def data_gradient(predictor: Predictor, w: Tensor, examples: Examples, weight: Tensor | None = None) -> Tensor:
    """sum_i v_i J_i' (h(f_i) - y_i): (P,)   (paper, Eq. 5, summed)."""
    look = Statistics(predictor, w)
    z = predictor.features(examples.x) if predictor.linear else predictor.encode(examples.x)
    look.add_encoded(z, examples.y.to(z), weight)
    return look.gradient


def reselect(state: State, data: Data, policy: MemoryPolicy, seed: int = 0) -> Result:
    """Choose memory anew by a pass over all the data a state stands for. Weights, g* and G stay: `certify` measures."""
    cost = Cost()
    with cost.timed():
        generation = state.memory.generation + 1
        size, delta = policy.size(state.count), state.regularizer.delta
        bare = isinstance(data, PartitionedData)
        selection = MemorySelection(policy, size, state.predictor, state.w, state.curvature, delta, seed, bare)
        look = accumulate(data, Statistics(state.predictor, state.w, selection=selection))
        cost.forward_passes += look.count
        cost.data_passes += 1
        memory, rows = selection.take(generation, data.rows if isinstance(data, PartitionedData) else None)
    return Result(replace(state, memory=memory), rows, cost, True)
