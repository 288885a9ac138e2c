"""Training from scratch, and the pass that completes the state of a version."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.kprior.adaptation.result import Result
from core.kprior.certificate.certified_removal import CertifiedRemoval
from core.kprior.certificate.dense import certify_anchored, is_dense
from core.kprior.curvature import backend_for, is_wide
from core.kprior.data.examples import Data
from core.kprior.memory.memory import MemoryChoice, MemoryPolicy
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import regularizer_of
from core.kprior.model.spec import Spec
from core.kprior.model.tree_splits import LeafEncoder
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.objective.transfer import transplant
from core.kprior.passes.cost import Cost
from core.kprior.passes.encoded import EncodedData
from core.kprior.passes.moments import fit_encoder, initial_weights_from
from core.kprior.solvers import Progress, Solve, Training, Watch, solve
from core.kprior.solvers.budgeted_adam import descend_warm
from core.kprior.state import State
from core.kprior.state.measurement import measure
from core.kprior.training.tree_boosting import fit_splits
from core.kprior.training.wide import MAX_NEWTON_WORK, descends_by_gradients, train_by_gradients

STATISTICS_ROWS = 256
"""Rows of one batch when the statistics of BatchNorm layers are computed."""


@dataclass(frozen=True)
class Predecessor:
    """An earlier state of the same model."""

    state: State
    """Its encoder is used, and its perturbation, so that weights have the same meaning in both models."""
    warm: bool = False
    """Start from its weights: a network continues by a shorter descent; a linear model, whose optimum is unique, may
    have another frozen encoder with the same number of features."""


@dataclass(frozen=True)
class Execution:
    """Where a training runs, and what observes it."""

    device: torch.device | str = "cpu"
    progress: Progress | None = None
    """Called with a fraction from 0 to 1 and a phrase; may raise to stop the work."""
    watch: Watch | None = None
    """Called with the backward passes so far and the weights of a network after each step; True ends the training."""
    solver: Solve = solve
    """May solve elsewhere."""


def train(
    spec: Spec,
    data: Data,
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    curvature: str | None = "auto",
    predecessor: Predecessor | None = None,
    certified_removal: CertifiedRemoval | None = None,
    execution: Execution = Execution(),  # noqa: B008 - immutable
) -> Result:
    """Minimise sum_i l(y_i, f_i(w)) + R(w) over all of `data`   (paper, Eq. 1).

    Parameters
    ----------
    spec
        {"input": ..., "target": ..., "architecture": ..., "regularizer": ...}.
    data
        Chunks of examples, which can be read more than once.
    training
        Options of the training of networks; all models use its seed.
    policy
        How many examples the state remembers, and which.
    curvature
        The name of a backend (`core.kprior.curvature`), or None. "auto" chooses a backend for a GLM, and none for a
        network, whose adaptation does not use it.
    predecessor
        An earlier state whose encoder is used, and whether a network continues from its weights.
    certified_removal
        Perturb the objective of a GLM, so that removals can be certified.
    execution
        Device, callbacks and solver.

    Returns
    -------
    Result
        The state, the rows of its memory, the cost and, for a GLM, a certificate.

    Raises
    ------
    ValueError
        If the spec is invalid, rows do not fit the model, or there are no rows.
    SolverError
        If the solver finds no finite weights.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(6.0)[:, None]
    >>> data = Examples(torch.arange(6), x, 3 * x + 1)
    >>> [round(weight, 4) for weight in train(spec, data.chunks(4)).state.w.tolist()]  # a shrunk slope, and a bias
    [2.8378, 1.4054]
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    before = None if predecessor is None else predecessor.state
    solver, progress = execution.solver, execution.progress
    cost = Cost()
    with cost.timed():
        predictor = Predictor(spec, training.seed, execution.device)
        if isinstance(predictor.encoder, LeafEncoder) and before is None:
            fit_splits(predictor, spec, data, training, cost)
        elif before is None:
            fit_encoder(predictor.encoder, data)
            cost.data_passes += len(predictor.encoder.state_dict()) > 0
        else:
            predictor.inherit(before.predictor)
        regularizer = regularizer_of(spec["regularizer"], predictor)
        if certified_removal is not None:
            noise = None if before is None else before.regularizer.linear
            same = noise is not None and noise.shape == (predictor.size,)
            regularizer = replace(regularizer, linear=noise if same else certified_removal.draw_noise(predictor))
        if descends_by_gradients(predictor, regularizer, curvature):
            encoded = EncodedData(predictor, data)
            if is_wide(predictor) or encoded.count_rows() * predictor.size**2 > MAX_NEWTON_WORK:
                parts = (spec, regularizer, encoded, training, policy, cost, progress, old_head(predecessor, predictor))
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
            # A network ends near its initial weights, so these are the ones that its penalty favours.
            w = initial_weights_from(predictor, data) if regularizer.toward is None else regularizer.toward.clone()
            cost.data_passes += regularizer.toward is None and not predictor.family.classifies
            if predecessor is not None and predecessor.warm:
                w, solver = transplant(predecessor.state, predictor, w), descend_warm
        term = Term(predictor, data, past=True)
        objective = Objective(predictor, regularizer.delta, regularizer.slope(), [term])
        count = term.rows()
        cost.data_passes += not term.cached
        if count == 0:
            raise ValueError("There are no examples to train on.")
        if (head := old_head(predecessor, predictor)) is not None:
            at_zero, at_head = (objective.evaluate(start, cost)[0] for start in (w, head))
            w = head if at_head < at_zero else w
        predictor.batch_statistics = predictor.has_statistics
        solution = solver(objective, w, training, cost, progress, execution.watch)
        if predictor.has_statistics:
            fit_statistics(predictor, solution.w, data)
            cost.data_passes += 1
        choice = MemoryChoice(policy, policy.size(count), training.seed)
        kind = backend_for(predictor, curvature)
        measured = measure(predictor, regularizer, solution.w, data, choice, kind, cost, solution.hessian)
        found = (measured.anchor, measured.memory, count, measured.surrogate, measured.last_layer)
        state = State(predictor, regularizer, spec["regularizer"].copy(), solution.w, *found)
        certificate = certify_anchored(state, measured.rows) if is_dense(state) else None
    return Result(state, measured.rows, cost, solution.converged, certificate)


def old_head(predecessor: Predecessor | None, predictor: Predictor) -> Tensor | None:
    """The weights (P,) of a linear model to start from; None without a predecessor of the same size."""
    if predecessor is None or not predecessor.warm or not predictor.linear:
        return None
    before = predecessor.state
    fits = before.predictor.linear and before.predictor.size == predictor.size
    return before.w.to(predictor.device, predictor.dtype).clone() if fits else None


def fit_statistics(predictor: Predictor, w: Tensor, data: Data) -> None:
    """Compute the statistics of BatchNorm layers with the final weights, by one pass. They stay fixed from then on."""
    predictor.batch_statistics = True
    predictor.reset_statistics()
    with torch.no_grad():
        for chunk in data:
            for start in range(0, len(chunk), STATISTICS_ROWS):
                predictor.outputs(w, chunk.x[start : start + STATISTICS_ROWS], training=True)
    predictor.batch_statistics = False
