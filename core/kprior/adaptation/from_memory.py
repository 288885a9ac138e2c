"""Adaptation of a GLM from its memory, where the sums at the anchor cannot be carried on.

That is the case if the architecture or the loss changes, or if the sums are estimates. The
objective is that of `objective/kprior_objective.py`. Here it is solved, and the state of the next version is completed
from the rows at hand.
"""

import torch
from torch import Tensor

from core.kprior.adaptation.recentre import recentre
from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.adaptation.result import Result
from core.kprior.curvature import Full, is_wide
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Examples, chunks_of
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.objective.kprior_objective import Problem, build_objective, weights_of
from core.kprior.objective.tasks import ChangeLoss
from core.kprior.passes.cost import Cost
from core.kprior.solvers import solve
from core.kprior.state import State
from core.kprior.state.anchor import Anchor, hessian_of

MIN_ROWS_PER_WEIGHT = 20
"""Memory rows per weight that fitting the model by another loss requires."""
SVM_SCALES = tuple(2 ** (k / 2) for k in range(-8, 3))
"""Multiples of a logistic regression's weights that are tried as the weights of a support vector machine."""


def adapt_from_memory(request: AdaptationRequest) -> Result:
    """Minimise the K-prior of the memory and the rows that the tasks bring."""
    training, cost = request.training, Cost()
    with cost.timed():
        state = recentre(request.state, request.memory)
        problem = build_objective(state, request.memory, request.tasks, training.seed, cost)
        if any(isinstance(task, ChangeLoss) for task in request.tasks) and has_small_memory(state):
            # The optimum of so few rows by another loss would be further off than the old weights; only their scale,
            # which a margin depends on, is adjusted.
            objective, start, family = problem.objective, problem.start, problem.predictor.family
            scales = SVM_SCALES if family.kinked and family.classifies else (1.0,)
            best = min(scales, key=lambda scale: objective.evaluate(scale * start, cost)[0])
            w, converged = best * start, False
        else:
            solution = solve(problem.objective, problem.start, training, cost, request.progress)
            w, converged = solution.w, solution.converged
        new_state, rows = next_state(state, problem, w, request.policy, training.seed, cost)
    return Result(new_state, rows, cost, converged)


def has_small_memory(state: State) -> bool:
    """Whether a memory is too small for its own optimum to be of use."""
    return len(state.memory) < min(state.count, MIN_ROWS_PER_WEIGHT * state.predictor.size)


def next_state(
    state: State, problem: Problem, w: Tensor, policy: MemoryPolicy, seed: int, cost: Cost
) -> tuple[State, Examples]:
    """The state of the new version, from the memory and the added examples alone."""
    predictor, objective = problem.predictor, problem.objective
    same = predictor is state.predictor
    # A pass over the data estimates what a wide model needs of its curvature.
    dense = not is_wide(predictor) and (not same or isinstance(state.curvature, Full))
    _, gradient, hessian = objective.evaluate(w, cost, hessian=dense)
    curvature = None if hessian is None else Full(hessian - torch.diag(objective.delta))
    surrogate = next_surrogate(state, problem, w)
    anchor = Anchor(w, gradient - problem.regularizer.gradient(w), curvature)
    H = hessian_of(predictor, problem.regularizer, anchor) if dense else None
    selection = MemorySelection(policy, policy.size(problem.count), predictor, w, H, seed)
    added, generation = problem.task_set.added, state.memory.generation + 1
    memory, rows = select_again(selection, problem.kept, problem.importance, added, generation)
    spec = problem.task_set.regularizer or state.regularizer_spec
    return State(predictor, problem.regularizer, spec, w, anchor, memory, problem.count, surrogate), rows


def next_surrogate(state: State, problem: Problem, w: Tensor) -> Surrogate | None:
    """The surrogate at the new weights, as far as the rows at hand determine it."""
    predictor = problem.predictor
    same = predictor is state.predictor
    surrogate = problem.surrogate if same else Surrogate.zeros(predictor)
    if surrogate is None:
        return None
    weight = weights_of(predictor, problem.kept, problem.importance)
    if same:
        surrogate.replace(predictor, state.w, w, problem.kept.x, weight)
    else:
        surrogate.add(predictor, w, problem.kept.x, weight)
    for chunk in chunks_of(problem.task_set.added):
        surrogate.add(predictor, w, chunk.x, predictor.weigh(chunk))
    return surrogate
