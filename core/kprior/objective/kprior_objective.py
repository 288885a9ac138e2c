"""The K-prior objective of a state, its memory and a set of tasks.

    K(w) =  sum_M v_i l(h*_i, f_i(w))              function space, on the memory           (paper, Eq. 8)
          + 1/2 (w-w*)' Q (w-w*)                   what memory leaves out, to second order (Eq. 12)
          + B_GR(w || w*)                          weight space; new regularizer G, old R  (Eq. 20)
          + g*' (w-w*)                             gradient that remained when training stopped
          + sum_added l(y_j, f_j(w))               Add Data                                (Eq. 13)
          + sum_removed (y_k - h*_k)' f_k(w)       Remove Data, with k out of M and out of Q

The removal term is the paper's -l_k + l(h*_k, .) without the parts that cancel. For GLMs with all examples in memory,
K differs from the retained objective by a constant, for all tasks (Theorems 1 and 2). `bench/paper/objective` has the
same objective for networks, and the paper's other methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Examples, keys_of
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.objective import Objective
from core.kprior.objective.retained_past import CurvatureSpace, RetainedPast
from core.kprior.objective.tasks import Task, TaskSet
from core.kprior.objective.terms import Term, row_weights
from core.kprior.objective.transfer import new_predictor, new_regularizer, shared_parameters
from core.kprior.passes.cost import Cost
from core.kprior.state import State, align, count_after


@dataclass
class Problem:
    """An objective with everything that the next state needs."""

    objective: Objective
    predictor: Predictor
    regularizer: L2
    start: Tensor
    task_set: TaskSet
    kept: Examples
    """The retained rows of the memory."""
    importance: Tensor
    """The number of examples that each of them represents."""
    count: int
    surrogate: Surrogate | None


def build_objective(state: State, memory: Examples, tasks: Sequence[Task], seed: int, cost: Cost) -> Problem:
    """Build K for a GLM and the given tasks; the module's docstring has the formula.

    The state has its anchor at its weights (`recentre`). `seed` is that of the new architecture's random features, and
    `cost` counts the gradients of removed rows. Raises ValueError if no examples are left, rows of the memory are
    missing, or tasks contradict the state or each other.
    """
    old, task_set = state.predictor, TaskSet.of(tasks)
    past = RetainedPast.of(state, task_set.removed, cost)
    count = count_after(state, past.keys, keys_of(task_set.added))
    kept, importance, stays = retained_memory(state, memory, past)
    new = old if task_set.architecture is None else new_predictor(old, task_set.architecture, seed)
    regularizer = new_regularizer(state, task_set, new)
    shared = shared_parameters(old, new)

    f_star = old.outputs(state.w, kept.x)
    space = CurvatureSpace.of(state, past, new, shared, kept, f_star)
    v = memory_weights(importance, space)
    linear = linear_term(state, new, shared, past, kept, f_star, importance) + regularizer.slope()
    start = new.initial_weights()
    if shared is not None:
        start[shared[0]] = state.w[shared[1]]

    objective = Objective(new, regularizer.delta, linear)
    if len(kept):
        soft = None if new.family.kinked else old.family.mean(f_star)
        objective.terms.append(Term(new, [kept], soft, v))
        if new.family.kinked:
            # In place of soft labels: the linear part of the Bregman divergence of l(y, .).
            slope = new.family.residual(kept.y.to(f_star), f_star) * weights_of(new, kept, v)[:, None]
            objective.linear = objective.linear - (slope.T @ new.features(kept.x)).reshape(-1)
    objective.terms += [Term(new, data) for data in task_set.added]
    leftover = space.leftover(v)
    if leftover is not None:
        objective.curvature, objective.centre, offset = leftover
        objective.linear = objective.linear + offset
    return Problem(objective, new, regularizer, start, task_set, kept, importance, count, past.surrogate)


def retained_memory(state: State, memory: Examples, past: RetainedPast) -> tuple[Examples, Tensor, Tensor]:
    """The rows of the memory that stay, the number of examples that each represents, and a mask of those that stay."""
    stays = ~torch.isin(state.memory.key, past.keys)
    kept = align(state, memory).take(stays)
    importance = state.memory.weight[stays.to(state.memory.weight.device)]
    left = state.count - len(past.keys)
    if state.curvature is None and float(importance.sum()) > left:
        # Removed examples outside the memory were represented by rows in it.
        importance = importance * (left / float(importance.sum()))
    return kept, importance, stays


def linear_term(
    state: State,
    new: Predictor,
    shared: tuple[Tensor, Tensor] | None,
    past: RetainedPast,
    kept: Examples,
    f_star: Tensor,
    importance: Tensor,
) -> Tensor:
    """The part of K that is linear in the weights: -grad R(w*) of B_GR, g*, and the removal term."""
    linear = torch.zeros(new.size, dtype=new.dtype, device=new.device)
    if shared is None:
        return linear
    mine, theirs = shared
    linear[mine] = past.pull[theirs] - state.regularizer.gradient(state.w)[theirs]
    linear[mine] += state.gradient[theirs]
    if len(mine) < new.size and bool((importance == 1).all()):
        # The old model lacked these weights, so no pass measured their part of g*. A memory of all examples gives it
        # exactly. An estimate from a small memory did far more harm than leaving these weights where they are until a
        # pass measures the gradient.
        fresh = torch.ones(new.size, dtype=torch.bool, device=new.device)
        fresh[mine] = False
        residual = new.family.residual(kept.y.to(f_star), f_star) * weights_of(new, kept, importance)[:, None]
        linear[fresh] += (residual.T @ new.features(kept.x)).reshape(-1)[fresh]
    return linear


def memory_weights(importance: Tensor, space: CurvatureSpace) -> Tensor:
    """v: the number of rows that each memory example counts as, before its own weight.

    With a full curvature, the largest fraction of its importance that leaves the curvature outside the memory positive
    semi-definite; with another curvature, one; without any, its importance.
    """
    if space.dense:
        return space.balance(importance)
    return importance if space.total is None else torch.ones_like(importance)


def weights_of(predictor: Predictor, rows: Examples, importance: Tensor) -> Tensor:
    """(n,) the weight of each row in a sum: the number of examples that it represents, times its own weight."""
    weight = row_weights(importance, predictor.weigh(rows))
    assert weight is not None
    return weight
