"""The objective of every method on every task, networks included: `core.kprior.objective` with switches.

K(w) =  (1 - lambda) T^2 sum_M v_i l(h(f*_i / T), f_i(w) / T) + lambda sum_M v_i l(y_i, f_i(w))
      + 1/2 (w-w*)' Q (w-w*) + tau B_GR(w || w*) + g*' (w-w*)
      + sum_added l(y_j, f_j(w)) + sum_removed (y_k - h*_k)' f_k(w)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.paper.objective.methods import Method, Weighting
from bench.paper.objective.terms import InputMixer, MixedTerm, RemovedTerm, TemperedTerm, input_root
from core.kprior.data.examples import Data, Examples, keys_of
from core.kprior.model.predictor import Predictor
from core.kprior.objective.kprior_objective import Problem, retained_memory, weights_of
from core.kprior.objective.kprior_objective import linear_term as full_linear_term
from core.kprior.objective.kprior_objective import memory_weights as auto_weights
from core.kprior.objective.objective import Objective
from core.kprior.objective.retained_past import CurvatureSpace, RetainedPast
from core.kprior.objective.tasks import Task, TaskSet
from core.kprior.objective.terms import Term, row_weights
from core.kprior.objective.transfer import new_predictor, new_regularizer, shared_parameters
from core.kprior.passes.cost import Cost
from core.kprior.passes.loss import Loss
from core.kprior.state import State, count_after


def build_objective(
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    method: Method,
    cost: Cost,
    start: Start | None = None,
    taught: Tensor | None = None,
    inputs: Data = (),
) -> Problem:
    """Build K of a method for the given tasks.

    Parameters
    ----------
    state, memory, tasks, cost
        As for `core.kprior.objective.kprior_objective.build_objective`; the model may be a network.
    method
        The switches.
    start
        The seed of new networks, and whether training starts from the old weights.
    taught
        (m, K) outputs of another model for the memory, in place of the state's own.
    inputs
        The past data of a network; mixed inputs get noise of their covariance.
    """
    old, task_set, start = state.predictor, TaskSet.of(tasks), start or Start()
    past = RetainedPast.of(state, task_set.removed, cost)
    count = count_after(state, past.keys, keys_of(task_set.added))
    kept, importance, stays = retained_memory(state, memory, past)
    new = old if task_set.architecture is None else new_predictor(old, task_set.architecture, start.seed)
    regularizer = new_regularizer(state, task_set, new)
    shared = shared_parameters(old, new)
    same = new is old

    f_star = old.outputs(state.w, kept.x) if taught is None else taught[stays.to(taught.device)].to(new.dtype)
    space = CurvatureSpace(new, kept, state=state)
    if method.curvature:
        space = CurvatureSpace.of(state, past, new, shared, kept, f_star)
    v = memory_weights(method, importance, space)
    factor = method.tau if method.anchor and shared is not None else 1.0
    linear = factor * regularizer.slope()
    if method.anchor and shared is not None:
        mine, theirs = shared
        old_slope = state.regularizer.gradient(state.w)
        if method.gradient:
            linear = linear + full_linear_term(state, new, shared, past, kept, f_star, importance)
            linear[mine] += (1 - method.tau) * old_slope[theirs]
        else:
            linear[mine] += past.pull[theirs] - method.tau * old_slope[theirs]

    objective = Objective(new, factor * regularizer.delta, linear)
    if len(kept) and method.memory:
        mixer = None
        if method.mixing and not new.linear:
            mixer = InputMixer(old, state.w, input_root(old, inputs, past.keys))
        objective.terms += memory_terms(new, kept, old.family.mean(f_star / method.temperature), v, method, mixer, cost)
        if new.family.kinked and method.anchor:
            # In place of soft labels: the linear part of the Bregman divergence of l(y, .).
            slope = new.family.residual(kept.y.to(f_star), f_star) * weights_of(new, kept, v)[:, None]
            objective.linear = objective.linear - (slope.T @ new.features(kept.x)).reshape(-1)
        elif method.labels > 0 and method.anchor and method.gradient and same:
            # g* includes the labels already.
            objective.linear = objective.linear - method.labels * data_gradient(old, state.w, kept, v)
    objective.terms += [Term(new, data) for data in task_set.added]
    if same and method.anchor and not new.linear:
        objective.terms += removed_terms(state, task_set)
    leftover = space.leftover(v if method.memory else torch.zeros_like(v))
    if leftover is not None:
        objective.curvature, objective.centre, offset = leftover
        objective.linear = objective.linear + offset
    curvature = past.curvature if same else None
    w = start.weights(state, new, shared)
    return Problem(objective, new, regularizer, w, task_set, kept, importance, v, count, curvature, past.surrogate)


@dataclass(frozen=True)
class Start:
    """Where a solver starts."""

    seed: int = 0
    warm: bool = True
    """Start from the old weights, as far as the new model has them."""

    def weights(self, state: State, new: Predictor, shared: tuple[Tensor, Tensor] | None) -> Tensor:
        """(P,) the first weights."""
        # A network that was read from bytes has no seed of its own.
        cold = new is state.predictor and not self.warm
        w = (Predictor(new.spec, self.seed, new.device) if cold else new).initial_weights()
        if shared is not None and self.warm:
            w[shared[0]] = state.w[shared[1]]
        return w


def removed_terms(state: State, task_set: TaskSet) -> list[RemovedTerm]:
    """The removed rows of a network, one term for each chunk."""
    predictor, terms = state.predictor, []
    for chunk in (c for data in task_set.removed for c in data if len(c)):
        weight, z = predictor.weigh(chunk), predictor.encode(chunk.x)
        coefficient = -predictor.family.residual(chunk.y.to(z), predictor.outputs_of_encoded(state.w, z))
        terms.append(RemovedTerm(predictor, z, coefficient if weight is None else coefficient * weight[:, None]))
    return terms


def memory_terms(
    new: Predictor, kept: Examples, soft: Tensor, v: Tensor, method: Method, mixer: InputMixer | None, cost: Cost
) -> list[Term]:
    """(1 - lambda) T^2 sum_M v l(h(f*/T), f/T) + lambda sum_M v l(y, f)."""
    T, labels = method.temperature, 1.0 if new.family.kinked else method.labels
    terms: list[Term] = []
    if labels < 1:
        alone = v if mixer is None else v.clamp(max=1)
        terms.append(TemperedTerm(new, kept, soft, alone, 1 - labels, T))
        if mixer is not None and bool((v > 1).any()):
            # An input in memory represents itself; mixed inputs represent the rest of its weight.
            terms.append(MixedTerm(mixer, cost, new, kept, soft, v - alone, 1 - labels, T))
    if labels > 0:
        terms.append(TemperedTerm(new, kept, None, v, labels))
    return terms


def memory_weights(method: Method, importance: Tensor, space: CurvatureSpace) -> Tensor:
    """v: the number of rows that each memory example counts as, before its own weight."""
    weighting = method.weighting
    if weighting is Weighting.AUTO:
        return auto_weights(importance, space)
    if weighting is Weighting.ONE:
        return torch.ones_like(importance)
    if weighting is Weighting.IMPORTANCE:
        return importance
    if not space.dense:
        raise ValueError("Balanced weights need a full curvature.")
    return space.balance(importance)


def data_gradient(predictor: Predictor, w: Tensor, examples: Examples, importance: Tensor | None = None) -> Tensor:
    """sum_i v_i J_i' (h(f_i) - y_i): (P,)   (paper, Eq. 5, summed)."""
    seen = Loss(predictor, w)
    z = predictor.features(examples.x) if predictor.linear else predictor.encode(examples.x)
    seen.add_encoded(z, examples.y.to(z), row_weights(importance, predictor.weigh(examples)))
    return seen.gradient
