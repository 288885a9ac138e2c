"""Adaptation: from a state and its memory to the state that a retrain on the changed problem would give.

`objective/build.py` says what is minimised; here it is solved, and the next version's state made complete from what
was read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.kprior.adaptation.dense import hessian_of, recentre
from core.kprior.adaptation.network import adapt_network
from core.kprior.adaptation.schema import change_schema
from core.kprior.adaptation.sums import change_sums
from core.kprior.adaptation.survey import Survey, survey_change
from core.kprior.adaptation.wide import adapt_wide
from core.kprior.anchor import Anchor
from core.kprior.certificate.dense import certificate_of, is_dense
from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, Full, backend_for, curvature_for, is_wide
from core.kprior.data.drawing import Draw
from core.kprior.data.examples import Data, Examples, chunks_of
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.memory.selection import MemorySelection, select_again
from core.kprior.model.spec import is_network
from core.kprior.objective.build import Problem, build_objective, weights_of
from core.kprior.objective.methods import OURS, Method
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.tasks import Change, ChangeInput, ChangeLoss, ChangeTarget, Task
from core.kprior.objective.transfer import new_predictor
from core.kprior.passes.last_layer import estimate_last_layer
from core.kprior.result import Result
from core.kprior.solvers import Progress, Training, Watch, solve
from core.kprior.state import State, align

MIN_ROWS_PER_WEIGHT = 20
"""Rows of a memory for each weight, to fit the model anew by another loss."""
SVM_SCALES = tuple(2 ** (k / 2) for k in range(-8, 3))
"""Multiples of a logistic regression's weights at which those of a support vector machine may be."""
MAX_RELATIVE_BOUND = 1e3
"""A larger bound, relative to the weights, says that outputs have moved very far."""


def adapt(
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    *,
    method: Method = OURS,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    holdout: Data = (),
    draw: Draw | None = None,
    survey: Survey | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Result:
    """The model that a retrain on the changed problem would give, without the past. All tasks are solved at once.

    Parameters
    ----------
    state
        The model as it is.
    memory
        The rows that `state.memory` refers to, in any order.
    tasks
        What changes; of several changes of the regularizer or the architecture the last one holds. Where the input or
        the target changes, examples that come or go are given as the new ones have them.
    method
        What is minimised: ours, the paper's K-prior, or a rival of it.
    training
        How a network is trained; `training.budget` is what an adaptation with drawn rows may spend.
    policy
        How much the new state remembers, and which examples.
    holdout
        Examples whose predictions are bounded, too (GLMs), or that a network is audited with.
    draw
        Gives real rows of the data that stays: a network is adapted by them. Without it, or by another method, the
        memory must do.
    survey
        Of the same change, if one was made already.
    progress
        Called with a share of 0..1 and a phrase; may raise to stop the work.
    watch
        Called with the backward passes so far and the weights of a network after each step; True ends the adaptation.

    Returns
    -------
    Result
        The new state, the rows of its memory and the cost; a certificate for a GLM that carries its whole curvature (a
        bound) and for a network that was adapted with drawn rows (an audit).

    Raises
    ------
    ValueError
        If rows of the memory are missing, or tasks contradict the state or each other.
    SolverError
        If no weights can be given.

    Examples
    --------
    The past may be forgotten: what an adaptation needs of it is in the state and its memory.

    >>> import torch
    >>> from core.kprior import AddData, Examples, RemoveData, adapt, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None]
    >>> rows = Examples(torch.arange(10), x, 3 * x + torch.sin(x))
    >>> first, added, removed = rows.take(rows.key < 8), rows.take(rows.key >= 8), rows.take(rows.key < 2)
    >>> base = train(spec, [first])
    >>> adapted = adapt(base.state, base.memory, [AddData([added]), RemoveData([removed])])
    >>> retrained = train(spec, [rows.take(rows.key >= 2)])
    >>> torch.allclose(adapted.state.w, retrained.state.w), adapted.state.count, adapted.cost.data_passes
    (True, 8, 0)
    """
    training, policy = training or Training(), policy or MemoryPolicy()
    cost = Cost()
    taught = teach(state, memory, tasks, method)
    state, memory = change_schema(state, memory, tasks)
    change = Change.of(tasks)
    if draw is not None and method == OURS and becomes_network(state, change):
        survey = survey or survey_change(state, tasks, draw, training=training, holdout=holdout, watch=watch)
        return adapt_network(survey, memory, policy, progress, watch)
    with cost.timed():
        carries_on = method == OURS and state.anchor.exact and keeps_model(state, change)
        if carries_on and is_dense(state):
            anchored = change_sums(state, memory, change, policy, training, cost)
            w = anchored.solve(state.w, training, cost)
            bound = anchored.bound(w)
            if not bound.distance <= MAX_RELATIVE_BOUND * float(w.norm()):
                w = anchored.solve_by_secants(w, training, cost)
                bound = anchored.bound(w)
            new_state = anchored.state(w, change.regularizer or state.regularizer_spec)
            certificate = certificate_of(anchored, bound, w, 0, holdout)
            return Result(new_state, anchored.rows, cost, True, certificate)
        if carries_on and is_wide(state.predictor):
            new_state, rows = adapt_wide(state, memory, change, policy, training, cost)
            return Result(new_state, rows, cost, True)
        state = recentre(state, memory)
        problem = build_objective(state, memory, tasks, method, training, cost, taught)
        if any(isinstance(task, ChangeLoss) for task in tasks) and knows_little(state):
            # an optimum of so few rows by another loss would be further off than the weights; but a margin has a scale
            objective, start, family = problem.objective, problem.start, problem.predictor.family
            times = SVM_SCALES if family.kinked and family.classifies else (1.0,)
            best = min(times, key=lambda each: objective.evaluate(each * start, cost)[0])
            new_state, rows = next_state(state, problem, best * start, method, policy, training.seed, cost)
            return Result(new_state, rows, cost, False)
        solution = solve(problem.objective, problem.start, training, cost, progress, watch)
        new_state, rows = next_state(state, problem, solution.w, method, policy, training.seed, cost)
    return Result(new_state, rows, cost, solution.converged)


def teach(state: State, memory: Examples, tasks: Sequence[Task], method: Method) -> Tensor | None:
    """(m, K) what the old model says of its memory in its own columns, where a method learns from that alone.

    All others begin with a model that has the new columns already, and refer to what that one says.
    """
    if method.anchor or not any(isinstance(task, ChangeInput) for task in tasks):
        return None
    if any(isinstance(task, ChangeTarget) for task in tasks):
        raise ValueError("a teacher of other classes cannot say what the new ones are")
    return state.predictor.outputs(state.w, align(state, memory).x)


def knows_little(state: State) -> bool:
    """Whether a memory is too small for an optimum of its own to mean anything."""
    return len(state.memory) < min(state.count, MIN_ROWS_PER_WEIGHT * state.predictor.size)


def becomes_network(state: State, change: Change) -> bool:
    """Whether the new model is a network."""
    if change.architecture is None:
        return not state.predictor.linear
    return is_network(change.architecture)


def keeps_model(state: State, change: Change) -> bool:
    """Whether the architecture stays what it is."""
    return change.architecture is None or new_predictor(state.predictor, change.architecture, 0) is state.predictor


def next_state(
    state: State, problem: Problem, w: Tensor, method: Method, policy: MemoryPolicy, seed: int, cost: Cost
) -> tuple[State, Examples]:
    """The new version's whole state, from memory and added examples alone."""
    predictor, objective = problem.predictor, problem.objective
    same = predictor is state.predictor
    kind = state.curvature.kind if same and state.curvature is not None else None if same else "auto"
    if is_wide(predictor):
        kind = None  # what a wide model needs of it is estimated from rows when a pass is made
    curvature = None if (kind := backend_for(predictor, kind)) is None else curvature_for(predictor, kind)
    # the Hessian of K is that of the past only where K has all of it
    exact = predictor.linear and isinstance(curvature, Full) and method.curvature and method.temperature == 1
    _, gradient, hessian = objective.evaluate(w, cost, hessian=exact)
    if hessian is not None:
        curvature = Full(hessian - torch.diag(objective.delta))
    elif curvature is not None:
        curvature = carry_curvature(problem, w, curvature)
    gradient = next_gradient(state, problem, w, gradient, method)
    surrogate = problem.surrogate if same else Surrogate.zeros(predictor)
    if surrogate is not None:
        counted = weights_of(predictor, problem.kept, problem.importance)
        if same:
            surrogate.replace(predictor, state.w, w, problem.kept.x, counted)
        else:
            surrogate.add(predictor, w, problem.kept.x, counted)
            if problem.surrogate is not None:  # the inputs are the same, whatever reads them
                surrogate.moment = problem.surrogate.moment.clone()
        for chunk in chunks_of(problem.change.added):
            surrogate.add(predictor, w, chunk.x, predictor.weigh(chunk))
    generation = state.memory.generation + 1
    size = policy.size(problem.count)
    dense = predictor.linear and isinstance(curvature, Full)
    anchor = Anchor(w, gradient - problem.regularizer.gradient(w), curvature)
    H = hessian_of(predictor, problem.regularizer, anchor) if dense else None
    selection = MemorySelection(policy, size, predictor, w, H, seed)
    memory, rows = select_again(selection, problem.kept, problem.importance, problem.change.added, generation)
    spec = problem.change.regularizer or state.regularizer_spec
    last_layer = estimate_last_layer(predictor, w, [(rows, problem.count)])
    new_state = State(predictor, problem.regularizer, spec, w, anchor, memory, problem.count, surrogate, last_layer)
    return new_state, rows


def next_gradient(state: State, problem: Problem, w: Tensor, gradient: Tensor, method: Method) -> Tensor:
    """g* of the new state: the gradient of K, less what K has of the method and not of the problem.

    A network's K speaks of mixed inputs; its gradient on the memory alone says little about the past and would be fed
    back, so nothing is claimed until a pass measures it.
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
    """G of the new state where no Hessian is at hand: what was left over, plus all that is read anyway."""
    objective, predictor = problem.objective, problem.predictor
    curvature, weight = empty, problem.importance
    if objective.curvature is not None and objective.curvature.kind == empty.kind:
        curvature, weight = objective.curvature.copy(predictor), problem.memory_weight
    elif problem.past_curvature is not None and problem.past_curvature.kind == empty.kind:
        curvature, weight = problem.past_curvature.copy(predictor), torch.zeros_like(problem.importance)
    if bool((weight != 0).any()):
        curvature.add_rows(predictor, w, problem.kept, weights_of(predictor, problem.kept, weight))
    for chunk in chunks_of(problem.change.added):
        curvature.add_rows(predictor, w, chunk, predictor.weigh(chunk))
    return curvature
