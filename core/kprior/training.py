"""Training from scratch (Batch), and the one pass that makes a version's state complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from core.kprior.anchored import hessian_of
from core.kprior.certificate.certificate import Certificate, certify_anchored, is_dense
from core.kprior.certificate.certified_removal import Removal
from core.kprior.cost import Cost
from core.kprior.data.examples import Data, Examples
from core.kprior.measurement import measure
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.objective.transfer import transplant
from core.kprior.passes.moments import fit_encoder
from core.kprior.solvers import Progress, Solve, Training, Watch, solve
from core.kprior.solvers.budget import descend_warm
from core.kprior.state import State


@dataclass(frozen=True)
class Result:
    """A new state, the rows that its memory refers to, and what it cost."""

    state: State
    memory: Examples
    cost: Cost
    converged: bool
    certificate: Certificate | None = None
    """What can be said of it without another pass over the data."""


def train(
    spec: dict[str, Any],
    data: Data,
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    curvature: str | None = "auto",
    encoder_of: State | None = None,
    start: State | None = None,
    removal: Removal | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    watch: Watch | None = None,
    solver: Solve = solve,
) -> Result:
    """Minimise sum_i l(y_i, f_i(w)) + R(w) over all of `data`   (paper, Eq. 1).

    `encoder_of` takes over the encoder of an earlier state, and its perturbation, so that both mean the same by a
    weight. `start` is a network from which a shorter descent goes on, with its encoder. `curvature` names a
    backend; "auto" keeps none for networks, whose default method has no use for it. With `removal` the
    objective is perturbed, so that removals from it can be certified. `solver` may solve elsewhere.
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    encoder_of = encoder_of or start
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
        if start is not None and not predictor.linear:
            w, solver = transplant(start, predictor), descend_warm
        term = Term(predictor, data, past=True)
        linear = torch.zeros_like(w) if regularizer.linear is None else regularizer.linear
        objective = Objective(predictor, regularizer.delta, linear, [term])
        count = term.rows()
        cost.data_passes += not term.cached
        if count == 0:
            raise ValueError("there is nothing to train on: no examples")
        solution = solver(objective, w, training, cost, progress, watch)
        measured = measure(
            predictor,
            regularizer,
            solution.w,
            data,
            policy.size(count),
            policy,
            backend_for(predictor, curvature),
            cost,
            seed=training.seed,
            near=solution.hessian,
        )
        parts = (measured.anchor, measured.memory, count, measured.surrogate)
        state = State(predictor, regularizer, dict(spec["regularizer"]), solution.w, *parts)
        certificate = certify_anchored(state, measured.rows) if is_dense(state) else None
    return Result(state, measured.rows, cost, solution.converged, certificate)


def backend_for(predictor: Predictor, curvature: str | None) -> str | None:
    """Which curvature a model carries: networks only what they are told to."""
    if curvature is None or (curvature == "auto" and not predictor.linear):
        return None
    return curvature


def reselect(state: State, data: Data, policy: MemoryPolicy, seed: int = 0) -> Result:
    """Choose memory anew by a pass over all the data a state stands for. The weights stay; the anchor moves to them."""
    cost = Cost()
    with cost.timed():
        kind = None if state.curvature is None else state.curvature.kind
        asked = (state.predictor, state.regularizer, state.w, data, policy.size(state.count), policy, kind, cost)
        near = hessian_of(state.predictor, state.regularizer, state.anchor) if is_dense(state) else None
        measured = measure(*asked, seed=seed, generation=state.memory.generation + 1, near=near)
        state = replace(state, anchor=measured.anchor, memory=measured.memory, surrogate=measured.surrogate)
    return Result(state, measured.rows, cost, True)
