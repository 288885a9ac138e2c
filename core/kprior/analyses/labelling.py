"""The unlabelled inputs whose labels would tell a model most: a batch that is informative and diverse.

The information of a label about the weights is the curvature that its row would add. A batch is chosen greedily to
maximise log det(H + sum_i c_i phi_i phi_i'), c_i = sum_k h'_kk(f_i) the variance that the model predicts: each step
adds the row with the largest log(1 + c_i phi_i' H^-1 phi_i) and updates H, so that similar rows lose their value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.analyses.head import Head, head_of
from core.kprior.curvature import Blocks, Full, cholesky
from core.kprior.data.examples import Examples
from core.kprior.state import State, align


@dataclass(frozen=True)
class Batch:
    """The chosen inputs, the most informative first."""

    index: Tensor
    """(m,) their places in the pool."""
    gain: Tensor
    """(m,) the information of each label about the weights, in nats, given the labels of those before it."""
    mean: Tensor
    """(n, K) predictions for the whole pool."""


def choose_batch(state: State, x: Tensor, top: int, memory: Examples | None = None) -> Batch:
    """Choose the inputs to label next.

    Parameters
    ----------
    state
        The model.
    x
        (n, ...) raw inputs of the pool.
    top
        Number of inputs to choose.
    memory
        The rows that the state's memory refers to, for states that carry no curvature.

    Returns
    -------
    Batch
        At most `top` inputs.

    Examples
    --------
    Inputs far from all examples come first, and one of two equal ones is enough.

    >>> import torch
    >>> from core.kprior import Examples, choose_batch, train
    >>> spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "number"}}
    >>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
    >>> x = torch.tensor([[1.0, 0.1], [2.0, 0.0], [3.0, 0.2]])
    >>> state = train(spec, [Examples(torch.arange(3), x, x[:, :1])]).state
    >>> choose_batch(state, torch.tensor([[1.0, 0.0], [0.0, 9.0], [0.0, 9.0], [8.0, 0.0]]), 2).index.tolist()
    [1, 3]
    """
    head = head_of(state)
    phi = head.features(x)
    f = head.predict(phi)
    information = head.family.variance(f).sum(1)
    root = torch.linalg.solve_triangular(cholesky(mean_hessian(state, head, memory)), phi.T, upper=False)
    left, chosen, gains = (root**2).sum(0), list[int](), list[float]()
    for _ in range(min(top, len(phi))):
        gain = torch.log1p(information * left)
        gain[chosen] = -torch.inf
        best = int(gain.argmax())
        chosen.append(best)
        gains.append(float(gain[best]))
        scale = information[best] / (1 + information[best] * left[best])
        direction = root.T @ root[:, best]
        root = root - torch.outer(root[:, best], direction) * scale_of(float(information[best]), float(left[best]))
        left = (left - scale * direction**2).clamp(min=0)
    return Batch(torch.tensor(chosen, dtype=torch.long), torch.tensor(gains), head.family.mean(f))


def scale_of(information: float, leverage: float) -> float:
    """s with (I - s v v')^2 = I - c v v' / (1 + c |v|^2), for c the information of a row and |v|^2 its leverage."""
    if leverage <= 0:
        return 0.0
    return float((1 - (1 + information * leverage) ** -0.5) / leverage)


def mean_hessian(state: State, head: Head, memory: Examples | None) -> Tensor:
    """(D, D) the Hessian, averaged over outputs."""
    K, D = head.outputs, head.size // head.outputs
    delta = head.regularizer.delta.view(K, D).mean(0).clamp(min=1e-6)
    curvature = state.anchor.curvature if head.whole else None
    if isinstance(curvature, Full):
        G = torch.stack([curvature.matrix.view(K, D, K, D)[k, :, k] for k in range(K)]).mean(0)
    elif isinstance(curvature, Blocks):
        G = curvature.matrices.double().mean(0)
    else:
        G = torch.zeros(D, D, dtype=head.w.dtype)
        if memory is not None and len(memory):
            rows = align(state, memory)
            phi = head.features(rows.x)
            variance = head.family.variance(head.predict(phi)).mean(1)
            G = (phi * variance[:, None]).T @ phi * (state.count / len(rows))
    return G.to(head.w) + torch.diag(delta)
