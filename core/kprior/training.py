"""Training from scratch (Batch), and the one pass that makes a version's state complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, Full, curvature_for
from core.kprior.examples import Data, Examples
from core.kprior.memory import Memory, MemoryPolicy, MemorySelection, Select
from core.kprior.objective import Objective, Term
from core.kprior.predictor import Predictor
from core.kprior.regularizers import L2, regularizer_of
from core.kprior.removal import Removal
from core.kprior.solvers import Progress, Training, Watch, solve
from core.kprior.state import State
from core.kprior.surrogate import Surrogate


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
) -> Result:
    """Minimise sum_i l(y_i, f_i(w)) + R(w) over all of `data`   (paper, Eq. 1).

    `encoder_of` takes over the encoder of an earlier state, and its perturbation, so that both mean the same by a
    weight. `curvature`
    names a backend; "auto" keeps none for networks, whose default method has no use for it. With `removal` the
    objective is perturbed, so that removals from it can be certified.
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    cost = Cost()
    with cost.timed():
        predictor = Predictor(spec, training.seed, device)
        if encoder_of is None:
            predictor.encoder.fit(data)
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
        solution = solve(objective, w, training, cost, progress, watch)
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
    gradient = regularizer.gradient(w)
    curvature = None if kind is None else curvature_for(predictor, kind)
    surrogate = Surrogate.zeros(predictor)
    late = known is None and policy.select is Select.LEVERAGE
    late = late or (known is None and curvature is not None and curvature.kind == "full")

    def selection(scored_by: Curvature | None) -> MemorySelection:
        return MemorySelection(policy, policy.size(count), predictor, w, scored_by, regularizer.delta, seed)

    selected = None if late else selection(known)
    for chunk in data:
        gradient = gradient + data_gradient(predictor, w, chunk)
        cost.backward_passes += len(chunk)
        if curvature is not None:
            curvature.add(predictor, w, chunk.x)
        if surrogate is not None:
            surrogate.add(predictor, w, chunk.x)
        if selected is not None:
            selected.offer(chunk)
    cost.data_passes += 1
    if selected is None:
        selected = selection(curvature)
        for chunk in data:
            selected.offer(chunk)
            cost.forward_passes += len(chunk)
        cost.data_passes += 1
    memory, rows = selected.take(generation)
    return Summary(gradient, curvature, memory, rows, surrogate)


def data_gradient(predictor: Predictor, w: Tensor, examples: Examples, weight: Tensor | None = None) -> Tensor:
    """sum_i v_i J_i' (h(f_i) - y_i): (P,)   (paper, Eq. 5, summed)."""
    weight = torch.ones(len(examples), dtype=predictor.dtype, device=predictor.device) if weight is None else weight
    if predictor.linear:
        phi = predictor.features(examples.x)
        f = phi @ w.view(predictor.family.outputs, -1).T
        return (((predictor.family.mean(f) - examples.y.to(f)) * weight[:, None]).T @ phi).reshape(-1)
    w = w.detach().requires_grad_()
    f = predictor.outputs(w, examples.x)
    loss = (predictor.family.loss(examples.y.to(f), f) * weight).sum()
    return torch.autograd.grad(loss, w)[0]


def reselect(state: State, data: Data, policy: MemoryPolicy, seed: int = 0) -> Result:
    """Choose memory anew by a pass over all the data a state stands for. Weights, g* and G stay: `certify` measures."""
    cost = Cost()
    with cost.timed():
        generation = state.memory.generation + 1
        size, delta = policy.size(state.count), state.regularizer.delta
        selection = MemorySelection(policy, size, state.predictor, state.w, state.curvature, delta, seed)
        for chunk in data:
            selection.offer(chunk)
            cost.forward_passes += len(chunk)
        cost.data_passes += 1
        memory, rows = selection.take(generation)
    return Result(replace(state, memory=memory), rows, cost, True)
