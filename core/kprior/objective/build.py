"""The K-prior objective of a state, its memory and a set of tasks.

    K(w) =  sum_M v_i l(h*_i, f_i(w))              function space, on the memory           (paper, Eq. 8)
          + 1/2 (w-w*)' Q (w-w*)                   what memory leaves out, to second order (Eq. 12)
          + B_GR(w || w*)                          weight space; new regularizer G, old R  (Eq. 20)
          + g*' (w-w*)                             what the base had not converged
          + sum_added l(y_j, f_j(w))               Add Data                                (Eq. 13)
          + sum_removed (y_k - h*_k)' f_k(w)       Remove Data, with k out of M and out of Q

The removal term is the paper's -l_k + l(h*_k, .) with the parts that cancel cancelled. For GLMs with everything in
memory K differs from the retained objective by a constant, whatever the tasks (Theorems 1 and 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import Curvature
from core.kprior.data.examples import Examples, keys_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.leftover import CurvatureSpace, RetainedPast
from core.kprior.objective.methods import Method, Weighting
from core.kprior.objective.objective import Objective
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.tasks import Change, Task
from core.kprior.objective.terms import InputMixer, Term, row_weights
from core.kprior.objective.transfer import new_predictor, new_regularizer, shared_parameters
from core.kprior.passes.loss import Loss
from core.kprior.solvers import Training
from core.kprior.state import State, align, count_after


@dataclass
class Problem:
    """An adaptation ready to solve."""

    objective: Objective
    predictor: Predictor
    regularizer: L2
    start: Tensor
    change: Change
    kept: Examples
    """Memory rows that stay."""
    importance: Tensor
    """What each of them stands for."""
    memory_weight: Tensor
    """As how many rows each of them enters the objective, v."""
    count: int
    past_curvature: Curvature | None
    """G without the removed examples, where the model stays the same."""
    surrogate: Surrogate | None


def build_objective(
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    method: Method,
    training: Training,
    cost: Cost,
    taught: Tensor | None = None,
) -> Problem:
    """Build K for the given tasks; see the module's formula.

    Parameters
    ----------
    state
        Its anchor is where its weights are (`recentre`).
    memory
        The rows that the state's memory refers to.
    tasks, method, training
        As for `adapt`.
    cost
        Counts the gradients of removed rows.
    taught
        (m, K) outputs of another model for the memory, which stand in the place of the state's own.

    Raises
    ------
    ValueError
        If no examples are left, rows of the memory are missing, or tasks contradict the state or each other.
    """
    old, change = state.predictor, Change.of(tasks)
    past = RetainedPast.of(state, change.removed, cost)
    count = count_after(state, past.keys, keys_of(change.added))
    stays = ~torch.isin(state.memory.key, past.keys)
    kept = align(state, memory).take(stays)
    importance = state.memory.weight[stays.to(state.memory.weight.device)]
    left = state.count - len(past.keys)
    if state.curvature is None and float(importance.sum()) > left:
        importance = importance * (left / float(importance.sum()))  # what was removed outside memory stood for itself

    new = old if change.architecture is None else new_predictor(old, change.architecture, training.seed)
    regularizer = new_regularizer(state, change, new)
    shared = shared_parameters(old, new)
    same = new is old

    f_star = old.outputs(state.w, kept.x) if taught is None else taught[stays.to(taught.device)].to(new.dtype)
    space = CurvatureSpace.of(state, past, new, method, same, shared, kept, f_star)
    v = memory_weights(method, importance, space)
    factor = method.tau if method.anchor and shared is not None else 1.0
    delta = factor * regularizer.delta
    linear = linear_term(state, new, shared, past, kept, f_star, importance, method) + factor * regularizer.slope()
    # a state's own network may come from bytes, and so from no seed at all
    cold = same and not training.warm_start
    start = (Predictor(new.spec, training.seed, new.device) if cold else new).initial_weights()
    if shared is not None and training.warm_start:
        start[shared[0]] = state.w[shared[1]]

    objective = Objective(new, delta, linear)
    if same and method.anchor and not new.linear:
        objective.removed = past.removed
    if len(kept) and method.memory:
        root = None if past.surrogate is None else past.surrogate.input_root()
        mixer = InputMixer(old, state.w, root) if method.mixing and not new.linear else None
        objective.terms += memory_terms(new, old, kept, f_star, v, method, mixer)
        if new.family.kinked and method.anchor:
            # of the Bregman divergence of l(y, .) the part that is linear, in place of soft labels
            slope = new.family.residual(kept.y.to(f_star), f_star) * weights_of(new, kept, v)[:, None]
            objective.linear = objective.linear - (slope.T @ new.features(kept.x)).reshape(-1)
        elif method.labels > 0 and method.anchor and method.gradient and same:
            # g* has the labels already
            objective.linear = objective.linear - method.labels * data_gradient(old, state.w, kept, v)
    objective.terms += [Term(new, data) for data in change.added]
    leftover = space.leftover(v if method.memory else torch.zeros_like(v))
    if leftover is not None:
        objective.curvature, objective.centre, offset = leftover
        objective.linear = objective.linear + offset
    curvature = past.curvature if same else None
    return Problem(objective, new, regularizer, start, change, kept, importance, v, count, curvature, past.surrogate)


def linear_term(
    state: State,
    new: Predictor,
    shared: tuple[Tensor, Tensor] | None,
    past: RetainedPast,
    kept: Examples,
    f_star: Tensor,
    importance: Tensor,
    method: Method,
) -> Tensor:
    """All of K that is linear in the weights: -grad R(w*) of B_GR, g*, and a GLM's removal term."""
    linear = torch.zeros(new.size, dtype=new.dtype, device=new.device)
    if shared is None or not method.anchor:
        return linear
    mine, theirs = shared
    linear[mine] = past.pull[theirs] - method.tau * state.regularizer.gradient(state.w)[theirs]
    if method.gradient:
        linear[mine] += state.gradient[theirs]
    if method.gradient and len(mine) < new.size and bool((importance == 1).all()):
        # Weights the old model did not have: their part of g* was never measured. A memory of all examples knows it;
        # a small one only guesses, which did far more harm than to leave them where they are until a pass measures it.
        fresh = torch.ones(new.size, dtype=torch.bool, device=new.device)
        fresh[mine] = False
        residual = new.family.residual(kept.y.to(f_star), f_star) * weights_of(new, kept, importance)[:, None]
        linear[fresh] += (residual.T @ new.features(kept.x)).reshape(-1)[fresh]
    return linear


def memory_terms(
    new: Predictor,
    old: Predictor,
    kept: Examples,
    f_star: Tensor,
    v: Tensor,
    method: Method,
    mixer: InputMixer | None,
) -> list[Term]:
    """(1 - lambda) T^2 sum_M v l(h(f*/T), f/T) + lambda sum_M v l(y, f)."""
    T, labels = method.temperature, 1.0 if new.family.kinked else method.labels
    terms = []
    if labels < 1:
        soft = old.family.mean(f_star / T)
        itself = v if mixer is None else v.clamp(max=1)
        terms.append(Term(new, [kept], soft, itself, scale=1 - labels, temperature=T))
        if mixer is not None and bool((v > 1).any()):
            # an input in memory speaks for itself; mixed inputs for the others that it stands for
            terms.append(Term(new, [kept], soft, v - itself, scale=1 - labels, temperature=T, mixer=mixer))
    if labels > 0:
        terms.append(Term(new, [kept], None, v, scale=labels))
    return terms


def memory_weights(method: Method, importance: Tensor, space: CurvatureSpace) -> Tensor:
    """v: as how many rows each memory example counts, each with its own weight."""
    weighting = method.weighting
    if weighting is Weighting.AUTO:
        known = space.total is not None or space.surrogate is not None
        weighting = Weighting.BALANCED if space.dense else Weighting.ONE if known else Weighting.IMPORTANCE
    if weighting is Weighting.ONE:
        return torch.ones_like(importance)
    if weighting is Weighting.IMPORTANCE:
        return importance
    if not space.dense:
        raise ValueError("balanced weights need a full curvature")
    return space.balance(importance)


def weights_of(predictor: Predictor, rows: Examples, importance: Tensor) -> Tensor:
    """(n,) what rows count that stand for so many: as often as that, times their own weight."""
    made = row_weights(importance, predictor.weigh(rows))
    assert made is not None
    return made


def data_gradient(predictor: Predictor, w: Tensor, examples: Examples, importance: Tensor | None = None) -> Tensor:
    """sum_i v_i J_i' (h(f_i) - y_i): (P,)   (paper, Eq. 5, summed)."""
    seen = Loss(predictor, w)
    z = predictor.features(examples.x) if predictor.linear else predictor.encode(examples.x)
    seen.add_encoded(z, examples.y.to(z), row_weights(importance, predictor.weigh(examples)))
    return seen.gradient
