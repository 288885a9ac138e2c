"""What a model predicts for each example without having learnt it: approximate leave-one-out, in one pass.

Without row i, the gradient of the objective at w is -J_i' r_i, with J_i = I (x) phi_i' and r_i = v_i dl/df; its Hessian
is H - J_i' C_i J_i with C_i = v_i h'(f_i). One Newton step from w therefore changes the row's own outputs to

    f_i + A_i (I - C_i A_i)^-1 r_i,     A_i = J_i H^-1 J_i'  (K x K),

by Woodbury's identity (Rad & Maleki 2020); for a softmax, C_i, A_i and r_i are in terms of E (`head_curvature.py`). The
error is of second order in the step: the rows whose outputs change most are computed exactly, and `check` measures the
error on random rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.analyses.group_removals import weights_without
from core.kprior.analyses.head import Head, HeadData, HeadRows, head_of
from core.kprior.analyses.head_curvature import HeadCurvature, HeadInverse
from core.kprior.data.examples import Data
from core.kprior.state import State

CHECKED_ROWS = 10
GROUP_TOLERANCE = 1e-8
"""Relative distance to the optimum of the weights without a group."""
CHECK_TOLERANCE = 1e-9
"""Relative distance to the optimum of the weights that the check compares with."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Outputs of each row with and without it, in the order of the data."""

    key: Tensor
    """(N,)."""
    y: Tensor
    """(N, K)."""
    outputs: Tensor
    """(N, K) of the model."""
    without: Tensor
    """(N, K) of the model without the row."""
    error: float
    """Mean error of the changes of outputs, relative to the mean change, on the rows that were checked exactly."""
    checked: int
    """Number of these rows."""
    passes: int
    whole: bool
    """False if only the last layer of a network was adapted."""
    sample_weight: Tensor
    """(N,) weights of the rows, without those of classes."""


def leave_one_out(state: State, data: Data, *, check: int = CHECKED_ROWS) -> LeaveOneOut:
    """Predict every training example with the model that lacks this example.

    Parameters
    ----------
    state
        The model.
    data
        All examples that it was trained on.
    check
        Number of random rows whose exact outputs are computed to report the error. As many rows, those whose outputs
        change most, get their exact outputs.

    Returns
    -------
    LeaveOneOut
        In the order of the data.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, leave_one_out, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None].double()
    >>> rows = Examples(torch.arange(10), x, 3 * x + torch.sin(x))
    >>> found = leave_one_out(train(spec, [rows]).state, [rows])
    >>> other = train(spec, [rows.take(rows.key != 9)]).state
    >>> torch.allclose(found.without[9], other.predictor.outputs(other.w, x[9:])[0])
    True
    """
    head = head_of(state)
    rows = HeadData(head, data)
    inverse = HeadCurvature.of(state, head, rows).inverse(head)
    parts = [(chunk.key, chunk.y, chunk.sample_weight, *outputs_without(inverse, chunk)) for chunk in rows]
    if not parts:
        raise ValueError("There are no examples.")
    key, y, weight, f, without = (torch.cat(column) for column in zip(*parts, strict=True))
    chosen = torch.randperm(len(key), generator=torch.Generator().manual_seed(0))[:check]
    error = 0.0
    if len(chosen):
        largest = centred(head, without - f).nan_to_num(torch.inf).topk(len(chosen)).indices
        both = torch.cat([largest, chosen[~torch.isin(chosen, largest)]])
        change = exact_changes(head, rows, inverse, both, f)
        without[largest] = f[largest] + change[: len(largest)]
        place = torch.stack([torch.nonzero(both == row)[0, 0] for row in chosen])
        off = centred(head, without[chosen] - f[chosen] - change[place]).mean()
        error = float(off / centred(head, change[place]).mean().clamp(min=1e-300))
    return LeaveOneOut(key, y, f, without, error, len(chosen), rows.passes, head.whole, weight)


def leave_groups_out(state: State, data: Data, group_of: Callable[[Tensor], Tensor], count: int) -> LeaveOneOut:
    """Predict every training example with the model that lacks all examples of its group, computed exactly.

    Parameters
    ----------
    state
        The model.
    data
        All examples that it was trained on.
    group_of
        The number of each row's group, from its key: (n,) -> (n,), -1 for rows without a group.
    count
        Number of groups.

    Returns
    -------
    LeaveOneOut
        Of the rows with a group, in the order of the data; `error` is the relative distance of the weights to their
        optima.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, leave_groups_out, train
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None].double()
    >>> rows = Examples(torch.arange(10), x, 3 * x + torch.sin(x))
    >>> found = leave_groups_out(train(spec, [rows]).state, [rows], lambda key: key // 5, 2)
    >>> other = train(spec, [rows.take(rows.key >= 5)]).state
    >>> torch.allclose(found.without[:5], other.predictor.outputs(other.w, x[:5]))
    True
    """
    head = head_of(state)
    rows = HeadData(head, data)
    inverse = HeadCurvature.of(state, head, rows).inverse(head)
    group = torch.cat([torch.zeros(0, dtype=torch.long), *(group_of(chunk.key) for chunk in rows)])
    found = weights_without(head, rows, group, count, inverse, tolerance=GROUP_TOLERANCE)
    parts = []
    for chunk in rows:
        ours = group[chunk.start : chunk.stop]
        there = torch.nonzero(ours >= 0)[:, 0]
        phi, W = chunk.phi[there], found.w[ours[there]].view(len(there), head.outputs, -1)
        without = torch.einsum("nd,nkd->nk", phi, W)
        parts.append((chunk.key[there], chunk.y[there], chunk.sample_weight[there], head.predict(phi), without))
    if not parts:
        raise ValueError("There are no examples.")
    key, y, weight, f, without = (torch.cat(column) for column in zip(*parts, strict=True))
    return LeaveOneOut(key, y, f, without, float(found.distance.max()), len(key), rows.passes, head.whole, weight)


def outputs_without(inverse: HeadInverse, rows: HeadRows) -> tuple[Tensor, Tensor]:
    """(n, K) the outputs of each row, before and after its removal."""
    head = inverse.head
    f = head.predict(rows.phi)
    A, r = inverse.leverages(rows.phi), rows.weigh(head.family.residual(rows.y, f))
    if head.outputs == 1:
        c = rows.weigh(head.family.curvature(rows.y, f))
        return f, f + A[:, 0] * r / (1 - A[:, 0] * c).clamp(min=1e-9)
    C = rows.weigh(inverse.contrast(inverse.contrast(head.family.hessian(f)).transpose(1, 2)))
    u: Tensor = torch.linalg.solve(torch.eye(A.shape[1], dtype=f.dtype) - C @ A, inverse.contrast(r)[:, :, None])
    return f, f + inverse.expand((A @ u)[:, :, 0])


def exact_changes(head: Head, data: HeadData, inverse: HeadInverse, chosen: Tensor, f: Tensor) -> Tensor:
    """(m, K) the exact changes of some rows' own outputs."""
    m, group = len(chosen), torch.full((len(f),), -1)
    group[chosen] = torch.arange(m)
    # the last group is empty: the optimum of all rows, from which the head's weights may differ a little
    exact = weights_without(head, data, group, m + 1, inverse, tolerance=CHECK_TOLERANCE)
    change = torch.empty(m, head.outputs, dtype=f.dtype)
    for rows in data:
        ours = group[rows.start : rows.stop]
        for i in torch.nonzero(ours >= 0)[:, 0].tolist():
            phi, row = rows.phi[i : i + 1], int(ours[i])
            change[row] = (head.predict(phi, exact.w[row]) - head.predict(phi, exact.w[m]))[0]
    return change


def centred(head: Head, change: Tensor) -> Tensor:
    """(n,) the size of changes of outputs; a constant added to all outputs of a softmax does not count."""
    if head.family.name == "categorical":
        change = change - change.mean(1, keepdim=True)
    return change.abs().amax(1)
