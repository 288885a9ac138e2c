"""The effect of examples, or groups of them, on other predictions or losses.

To first order, removing group g changes a quantity with gradient q at the weights w by sum_{i in g} q' H^-1 J_i' r_i.
This ranks all groups in one pass. For the groups of largest effect, the weights without them are computed exactly
(`group_removals.py`), because effects of examples do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.analyses.group_removals import weights_without
from core.kprior.analyses.head import Head, HeadData, head_of
from core.kprior.analyses.head_curvature import HeadCurvature
from core.kprior.data.examples import Data
from core.kprior.state import State

TOLERANCE = 1e-8


@dataclass(frozen=True)
class Influence:
    """The groups of largest effect, largest first, and the weights without each of them."""

    group: Tensor
    """(T,) numbers of the groups."""
    w: Tensor
    """(T, P) the head's weights without the group."""
    size: Tensor
    """(T,) number of rows of the group."""
    first_order: Tensor
    """(T,) the effect to first order, by which all groups were ranked."""
    head: Head
    passes: int


def influence(
    state: State,
    data: Data,
    group_of: Callable[[Tensor], Tensor],
    count: int,
    gradient: Tensor,
    *,
    top: int = 100,
) -> Influence:
    """Remove each group of examples, and compute the weights without those of largest effect.

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
    gradient
        (M, P) gradients of the quantities of interest at the head's weights, such as those of `loss_gradient`.
    top
        The number of groups to compute exactly.

    Returns
    -------
    Influence
        At most `top` groups.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, influence, train
    >>> from core.kprior.analyses.influence import loss_gradient
    >>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.arange(10.0)[:, None].double()
    >>> rows = Examples(torch.arange(10), x, torch.where(x == 7, 99.0, 3 * x))
    >>> state = train(spec, [rows]).state
    >>> unseen = Examples(torch.arange(2), x[:2] + 0.5, 3 * x[:2] + 1.5)
    >>> found = influence(state, [rows], lambda key: key // 2, 5, loss_gradient(state, [unseen]), top=1)
    >>> other = train(spec, [rows.take(rows.key // 2 != found.group[0])]).state
    >>> torch.allclose(found.w[0], other.w)
    True
    """
    head = head_of(state)
    rows = HeadData(head, data)
    inverse = HeadCurvature.of(state, head, rows).inverse(head)
    pull = inverse.solve(gradient.to(head.w)).view(len(gradient), head.outputs, -1)
    effect = torch.zeros(count, len(gradient), dtype=head.w.dtype)
    size, groups = torch.zeros(count, dtype=torch.long), []
    for chunk in rows:
        ours = group_of(chunk.key)
        groups.append(ours)
        r = chunk.weigh(head.family.residual(chunk.y, head.predict(chunk.phi)))
        moved = torch.einsum("nk,nd,mkd->nm", r, chunk.phi, pull)
        effect.index_add_(0, ours[ours >= 0], moved[ours >= 0])
        size += torch.bincount(ours[ours >= 0], minlength=count)
    largest = effect.abs().amax(1)
    there = torch.nonzero((size > 0) & (size < len(rows.keys())))[:, 0]
    chosen = there[largest[there].argsort(descending=True, stable=True)][:top]
    found = weights_without(head, rows, torch.cat(groups), count, inverse, tolerance=TOLERANCE, only=chosen)
    strongest = effect.gather(1, effect.abs().argmax(1, keepdim=True))[:, 0]
    return Influence(chosen, found.w, size[chosen], strongest[chosen], head, rows.passes)


def loss_gradient(state: State, data: Data) -> Tensor:
    """(1, P) the gradient of the mean loss of some rows, by a head's weights.

    As in metrics, rows count by their own weights, without those of classes.
    """
    head = head_of(state)
    total, weight = torch.zeros(head.outputs, head.size // head.outputs, dtype=head.w.dtype), 0.0
    for rows in HeadData(head, data):
        residual = head.family.residual(rows.y, head.predict(rows.phi))
        total += (residual * rows.sample_weight.to(residual)[:, None]).T @ rows.phi
        weight += float(rows.sample_weight.sum())
    return total.view(1, -1) / max(weight, 1e-300)


def prediction_gradients(state: State, x: Tensor) -> Tensor:
    """(n, P) the gradients of the predictions for raw inputs (n, ...): the mean, or that of the predicted class."""
    head = head_of(state)
    phi = head.features(x)
    f = head.predict(phi)
    chosen = f.argmax(1)
    slope = head.family.hessian(f)[torch.arange(len(f)), chosen]
    return (slope[:, :, None] * phi[:, None, :]).reshape(len(f), -1)
