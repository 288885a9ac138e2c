"""Adaptation: from a state and its memory to the state that a retrain on the changed problem would give.

`adapt` applies changes of the schema, then calls one of these implementations:

    network.py      a network: rows drawn from the retained data, within a budget
    dense.py        a GLM that carries its whole Hessian: exact sums at the anchor, and a bound
    wide.py         a GLM with too many weights for that: one preconditioned step
    from_memory.py  a GLM whose sums cannot be carried on: the K-prior of its memory
"""

from collections.abc import Sequence

from core.kprior.adaptation.dense import adapt_dense
from core.kprior.adaptation.from_memory import adapt_from_memory
from core.kprior.adaptation.network import adapt_network
from core.kprior.adaptation.network_survey import Survey
from core.kprior.adaptation.request import AdaptationRequest, Adapter
from core.kprior.adaptation.result import Result
from core.kprior.adaptation.schema import change_schema
from core.kprior.adaptation.wide import adapt_wide
from core.kprior.certificate.dense import is_dense
from core.kprior.curvature import is_wide
from core.kprior.data.examples import Data, Examples
from core.kprior.data.random_samples import Draw
from core.kprior.memory.memory import MemoryPolicy
from core.kprior.objective.tasks import Task
from core.kprior.solvers import Progress, Training
from core.kprior.state import State


def adapt(
    state: State,
    memory: Examples,
    tasks: Sequence[Task],
    *,
    training: Training | None = None,
    policy: MemoryPolicy | None = None,
    holdout: Data = (),
    draw: Draw | Survey | None = None,
    progress: Progress | None = None,
) -> Result:
    """Adapt a model to all tasks at once, without reading its past data.

    Parameters
    ----------
    state
        The model as it is.
    memory
        The rows that `state.memory` refers to, in any order.
    tasks
        What changes. If several tasks change the regularizer or the architecture, the last one applies. If the input or
        the target changes, added and removed examples are given in terms of the new one.
    training
        Options of the training of networks; `training.budget` limits an adaptation with drawn rows.
    policy
        How many examples the new state remembers, and which.
    holdout
        Examples whose predictions are bounded as well (GLMs), or that a network is audited with.
    draw
        Draws rows of the retained data, which the adaptation of a network requires; or a survey of the same change.
    progress
        Called with a fraction from 0 to 1 and a phrase; may raise to stop the work.

    Returns
    -------
    Result
        The new state, the rows of its memory and the cost; for a GLM that carries its whole curvature also a bound, and
        for a network an audit.

    Raises
    ------
    ValueError
        If rows of the memory are missing, tasks contradict the state or each other, or a network has no `draw`.
    SolverError
        If the solver finds no finite weights.

    Examples
    --------
    The state and its memory contain everything that an adaptation needs of the past data.

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
    state, memory = change_schema(state, memory, tasks)
    request = AdaptationRequest(
        state, memory, tasks, training or Training(), policy or MemoryPolicy(), holdout, draw, progress
    )
    return choose_adapter(request)(request)


def choose_adapter(request: AdaptationRequest) -> Adapter:
    """The implementation that suits the model and the change."""
    if request.is_for_network:
        return adapt_network
    if request.keeps_sums and is_dense(request.state):
        return adapt_dense
    anchored = request.state.anchor.exact or request.state.curvature is not None
    if request.keeps_features and is_wide(request.state.predictor) and anchored:
        return adapt_wide
    return adapt_from_memory
