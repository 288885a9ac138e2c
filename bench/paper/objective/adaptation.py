"""Adaptation by any method of `methods.py`, from the memory alone: GLMs and networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bench.paper.objective.build import Start, build_objective
from bench.paper.objective.methods import Method
from core.kprior import (
    ChangeInput,
    ChangeTarget,
    Cost,
    Data,
    Examples,
    MemoryPolicy,
    Result,
    State,
    Task,
    Training,
)
from core.kprior.adaptation.from_memory import next_surrogate
from core.kprior.adaptation.recentre import recentre
from core.kprior.adaptation.schema import change_schema
from core.kprior.curvature import Curvature, Full, backend_for, curvature_for, is_wide
from core.kprior.data.examples import chunks_of
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.objective.kprior_objective import Problem, weights_of
from core.kprior.passes.last_layer import estimate_last_layer
from core.kprior.solvers import Watch, solve
from core.kprior.state import align
from core.kprior.state.anchor import Anchor, hessian_of


def adapt_by(  # noqa: PLR0913 - one parameter for each thing that the benchmarks vary
    method: Method,
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    warm_start: bool = True,
    watch: Watch | None = None,
    inputs: Data = (),
) -> Result:
    """Minimise the objective of a method.

    Parameters
    ----------
    method
        Which terms the objective has.
    state, memory, tasks, training, policy
        As for `core.kprior.adapt`; a network needs no rows but its memory.
    warm_start
        Start from the old weights.
    watch
        Called with the backward passes so far and the weights of a network after each step; True ends the training.
    inputs
        The past data of a network; mixed inputs get noise of their covariance.
    """
    training, policy, cost = training or Training(), policy or MemoryPolicy(), Cost()
    taught = teach(state, memory, tasks, method)
    state, memory = change_schema(state, memory, tasks)
    with cost.timed():
        state = recentre(state, memory)
        problem = build_objective(state, memory, tasks, method, cost, Start(training.seed, warm_start), taught, inputs)
        solution = solve(problem.objective, problem.start, training, cost, None, watch)
        new_state, rows = next_state(state, problem, solution.w, method, policy, training.seed, cost)
    return Result(new_state, rows, cost, solution.converged)


def teach(state: State, memory: Examples, tasks: Sequence[Task], method: Method) -> Tensor | None:
    """(m, K) the old model's outputs for its memory in the old columns, if a method learns from these outputs alone.

    All other methods start from a model that has the new columns, and use that model's outputs.
    """
    if method.anchor or not any(isinstance(task, ChangeInput) for task in tasks):
        return None
    if any(isinstance(task, ChangeTarget) for task in tasks):
        raise ValueError("A teacher of other classes cannot label the new ones.")
    return state.predictor.outputs(state.w, align(state, memory).x)


def next_state(
    state: State, problem: Problem, w: Tensor, method: Method, policy: MemoryPolicy, seed: int, cost: Cost
) -> tuple[State, Examples]:
    """The state of the new version, from the memory and the added examples alone."""
    predictor, objective = problem.predictor, problem.objective
    same = predictor is state.predictor
    kind = state.curvature.kind if same and state.curvature is not None else None if same else "auto"
    if is_wide(predictor):
        kind = None  # a pass over the data estimates what a wide model needs of its curvature
    curvature = None if (kind := backend_for(predictor, kind)) is None else curvature_for(predictor, kind)
    # The Hessian of K includes the past only if K has all of it.
    exact = predictor.linear and isinstance(curvature, Full) and method.curvature and method.temperature == 1
    _, gradient, hessian = objective.evaluate(w, cost, hessian=exact)
    if hessian is not None:
        curvature = Full(hessian - torch.diag(objective.delta))
    elif curvature is not None:
        curvature = carry_curvature(problem, w, curvature)
    gradient = next_gradient(state, problem, w, gradient, method)
    surrogate = next_surrogate(state, problem, w)
    generation = state.memory.generation + 1
    size = policy.size(problem.count)
    dense = predictor.linear and isinstance(curvature, Full)
    anchor = Anchor(w, gradient - problem.regularizer.gradient(w), curvature)
    H = hessian_of(predictor, problem.regularizer, anchor) if dense else None
    selection = MemorySelection(policy, size, predictor, w, H, seed)
    memory, rows = select_again(selection, problem.kept, problem.importance, problem.task_set.added, generation)
    spec = problem.task_set.regularizer or state.regularizer_spec
    last_layer = estimate_last_layer(predictor, w, [(rows, problem.count)])
    new_state = State(predictor, problem.regularizer, spec, w, anchor, memory, problem.count, surrogate, last_layer)
    return new_state, rows


def next_gradient(state: State, problem: Problem, w: Tensor, gradient: Tensor, method: Method) -> Tensor:
    """g* of the new state: the gradient of K without the parts that belong to the method and not to the problem.

    The K of a network depends on mixed inputs. Its gradient on the memory alone says little about the past, and errors
    in it would accumulate; so it is zero until a pass measures it.
    """
    if not problem.predictor.linear:
        return torch.zeros_like(gradient)
    if problem.predictor is not state.predictor or not method.anchor:
        return gradient
    if not method.gradient:
        gradient = gradient + state.gradient
    pull = problem.regularizer.gradient(w) - state.regularizer.gradient(state.w)
    return gradient - (method.tau - 1) * pull


def carry_curvature(problem: Problem, w: Tensor, empty: Curvature) -> Curvature:
    """G of the new state without a Hessian: the curvature outside memory, plus that of the rows at hand."""
    objective, predictor = problem.objective, problem.predictor
    curvature, weight = empty, problem.importance
    if objective.curvature is not None and objective.curvature.kind == empty.kind:
        curvature, weight = objective.curvature.copy(predictor), problem.memory_weight
    elif problem.past_curvature is not None and problem.past_curvature.kind == empty.kind:
        curvature, weight = problem.past_curvature.copy(predictor), torch.zeros_like(problem.importance)
    if bool((weight != 0).any()):
        curvature.add_rows(predictor, w, problem.kept, weights_of(predictor, problem.kept, weight))
    for chunk in chunks_of(problem.task_set.added):
        curvature.add_rows(predictor, w, chunk, predictor.weigh(chunk))
    return curvature
