"""Training from scratch (Batch), and the one pass that makes a version's state complete."""

from __future__ import annotations

from dataclasses import replace

import torch

from core.kprior.adaptation.dense import hessian_of
from core.kprior.certificate.certified_removal import CertifiedRemoval
from core.kprior.certificate.dense import certify_anchored, is_dense
from core.kprior.cost import Cost
from core.kprior.curvature import backend_for, is_wide
from core.kprior.data.encoded import EncodedData
from core.kprior.data.examples import Data
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.model.spec import Spec
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.objective.transfer import transplant
from core.kprior.passes.measurement import choose_memory, measure
from core.kprior.passes.moments import fit_encoder, initial_weights_from
from core.kprior.result import Result
from core.kprior.solvers import Progress, Solve, Training, Watch, solve
from core.kprior.solvers.budget import descend_warm
from core.kprior.state import State
from core.kprior.training.wide import MAX_NEWTON_WORK, descends_by_gradients, train_by_gradients


def train(
    spec: Spec,
    data: Data,
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    curvature: str | None = "auto",
    encoder_of: State | None = None,
    start: State | None = None,
    certified_removal: CertifiedRemoval | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    watch: Watch | None = None,
    solver: Solve = solve,
) -> Result:
    """Minimise sum_i l(y_i, f_i(w)) + R(w) over all of `data`   (paper, Eq. 1).

    Parameters
    ----------
    spec
        {"input": ..., "target": ..., "architecture": ..., "regularizer": ...}.
    data
        Chunks of examples, readable more than once.
    training
        How a network is trained; its seed is everybody's.
    policy
        How much of the data the state remembers, and which examples.
    curvature
        The name of a backend (`core.kprior.curvature`); None for none. "auto" takes the one that suits a GLM, and none
        for networks, whose default method has no use for it.
    encoder_of
        An earlier state whose encoder is taken over, and its perturbation, so that both mean the same by a weight.
    start
        A network from which a shorter descent goes on, with its encoder.
    certified_removal
        With it the objective is perturbed, so that removals from it can be certified (GLMs).
    device
        Where the model lives.
    progress
        Called with a share of 0..1 and a phrase; may raise to stop the work.
    watch
        Called with the backward passes so far and the weights of a network after each step; True ends the training.
    solver
        May solve elsewhere.

    Returns
    -------
    Result
        The state, the rows of its memory, the cost and, for a GLM, a certificate.

    Raises
    ------
    ValueError
        If the spec is none, rows are not the model's, or there are none.
    SolverError
        If no weights can be given.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> data = Examples(torch.arange(6), x, 3 * x + 1)
    >>> [round(weight, 4) for weight in train(spec, data.chunks(4)).state.w.tolist()]  # a slope, shrunk, and a bias
    [2.8378, 1.4054]
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
        if certified_removal is not None:
            before = None if encoder_of is None else encoder_of.regularizer.linear
            same = before is not None and before.shape == (predictor.size,)
            regularizer = replace(regularizer, linear=before if same else certified_removal.draw_noise(predictor))
        if descends_by_gradients(predictor, regularizer, curvature):
            encoded = EncodedData(predictor, data)
            if is_wide(predictor) or encoded.count_rows() * predictor.size**2 > MAX_NEWTON_WORK:
                parts = (spec, predictor, regularizer, encoded, training, policy, cost, progress)
                try:
                    result = train_by_gradients(*parts)
                except ArithmeticError:
                    if is_wide(predictor):
                        raise
                else:
                    if is_wide(predictor) or result.converged:
                        return result
            del encoded
        w = predictor.initial_weights()
        if not predictor.linear:
            # a network ends near where it began: what it shall be like
            w = initial_weights_from(predictor, data) if regularizer.toward is None else regularizer.toward.clone()
            cost.data_passes += regularizer.toward is None and not predictor.family.classifies
            if start is not None:
                w, solver = transplant(start, predictor, w), descend_warm
        term = Term(predictor, data, past=True)
        objective = Objective(predictor, regularizer.delta, regularizer.slope(), [term])
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
        found = (measured.anchor, measured.memory, count, measured.surrogate, measured.last_layer)
        state = State(predictor, regularizer, spec["regularizer"].copy(), solution.w, *found)
        certificate = certify_anchored(state, measured.rows) if is_dense(state) else None
    return Result(state, measured.rows, cost, solution.converged, certificate)


def reselect(state: State, data: Data, policy: MemoryPolicy, seed: int = 0) -> Result:
    """Choose memory anew by a pass over all the data a state stands for. The weights stay; the anchor moves to them.

    Parameters
    ----------
    state
        The state whose memory is chosen.
    data
        All examples that it stands for.
    policy
        How many, and which.
    seed
        Of the choice, where chance decides.

    Returns
    -------
    Result
        The same model with another memory.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, MemoryPolicy, reselect, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None]
    >>> data = [Examples(torch.arange(10), x, 3 * x + 1)]
    >>> state = train(spec, data).state
    >>> more = reselect(state, data, MemoryPolicy(fraction=0.4))
    >>> len(state.memory), len(more.state.memory), bool((more.state.w == state.w).all())
    (1, 4, True)
    """
    cost = Cost()
    with cost.timed():
        size, generation = policy.size(state.count), state.memory.generation + 1
        if is_wide(state.predictor):
            arguments = (state.predictor, state.anchor.w, data, size, policy, cost)
            memory, rows, _ = choose_memory(*arguments, seed=seed, generation=generation)
            return Result(replace(state, memory=memory), rows, cost, True)
        kind = None if state.curvature is None else state.curvature.kind
        near = hessian_of(state.predictor, state.regularizer, state.anchor) if is_dense(state) else None
        measured = measure(
            state.predictor,
            state.regularizer,
            state.w,
            data,
            size,
            policy,
            kind,
            cost,
            seed=seed,
            generation=generation,
            near=near,
        )
        state = replace(
            state,
            anchor=measured.anchor,
            memory=measured.memory,
            surrogate=measured.surrogate,
            last_layer=measured.last_layer,
        )
    return Result(state, measured.rows, cost, True)
