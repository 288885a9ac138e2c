"""The weights of a head without each of several groups of examples: exact removals, many at a time.

All groups share passes. The first step removes each group's gradient at w, which one pass sums for all groups. Further
steps are those of a chord method: the gradient of the retained rows at the weights of every group, by one matrix
product per chunk, times the inverse Hessian of all rows. A group that does not converge quickly, because its removal
changes the Hessian, is solved on its own, by damped Newton steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.analyses.head import Head, HeadData
from core.kprior.analyses.head_curvature import MAX_EXACT_WEIGHTS, HeadInverse
from core.kprior.curvature import cholesky, glm_hessian

MAX_STEPS = 30
SLOW = 0.6
"""Smallest ratio of two steps at which the convergence is slow."""
BATCH_NUMBERS = 2**22
"""Outputs that are computed at once."""
MAX_BATCH = 64
"""Groups that share a pass."""


@dataclass(frozen=True)
class Removals:
    """The weights of a head without each group."""

    w: Tensor
    """(S, P)."""
    distance: Tensor
    """(S,) estimate of the relative distance to the optimum."""


def weights_without(
    head: Head,
    data: HeadData,
    group: Tensor,
    count: int,
    inverse: HeadInverse,
    *,
    tolerance: float = 1e-6,
    only: Tensor | None = None,
) -> Removals:
    """The optimum of a head's objective without each group of rows.

    Parameters
    ----------
    head
        Its weights are the start; they need not be the optimum.
    data
        All rows.
    group
        (N,) the number of each row's group, 0 to `count` - 1; -1 for rows that are never removed.
    count
        Number of groups.
    inverse
        The inverse Hessian at about these weights.
    tolerance
        The largest acceptable relative distance to the optimum.
    only
        The groups to compute; all if None.

    Returns
    -------
    Removals
        In the order of `only`.
    """
    wanted = torch.arange(count) if only is None else only
    found = [remove_batch(head, data, group, some, inverse, tolerance) for some in wanted.split(MAX_BATCH)]
    if not found:
        return Removals(torch.zeros(0, head.size, dtype=head.w.dtype), torch.zeros(0, dtype=head.w.dtype))
    return Removals(torch.cat([one.w for one in found]), torch.cat([one.distance for one in found]))


def remove_batch(
    head: Head, data: HeadData, group: Tensor, wanted: Tensor, inverse: HeadInverse, tolerance: float
) -> Removals:
    """The same for some groups."""
    S = len(wanted)
    W = head.w.expand(S, -1).clone()
    distance = torch.full((S,), torch.inf, dtype=W.dtype)
    last = torch.full((S,), torch.inf, dtype=W.dtype)
    active, slow = torch.arange(S), []
    for i in range(MAX_STEPS):
        if len(active) == 0:
            break
        if i == 0:
            gradient = first_gradients(head, data, group, wanted)
        else:
            gradient = gradients_without(head, data, group, wanted[active], W[active])
        step = -inverse.solve(gradient)
        size = step.norm(dim=1)
        ratio = size / last[active]
        failing = ~(ratio < SLOW) | ~step.isfinite().all(1)
        W[active[~failing]] += step[~failing]
        last[active] = size
        ratio = torch.where(torch.isfinite(last[active]) & (ratio > 0), ratio, SLOW)
        distance[active] = size * (ratio / (1 - ratio).clamp(min=1e-3)) / W[active].norm(dim=1).clamp(min=1e-300)
        slow += active[failing].tolist()
        active = active[~failing & (distance[active] > tolerance)]
    for i in [*slow, *active.tolist()]:
        W[i], distance[i] = solve_alone(head, data, group, int(wanted[i]), W[i], tolerance, inverse)
    return Removals(W, distance)


def first_gradients(head: Head, data: HeadData, group: Tensor, wanted: Tensor) -> Tensor:
    """(S, P) the gradient of the objective without group s at the head's weights, for every s."""
    S, K = len(wanted), head.outputs
    place, total, apart = places(group, wanted), torch.zeros(()), torch.zeros(())
    for rows in data:
        r = rows.weigh(head.family.residual(rows.y, head.predict(rows.phi)))
        mine = place[group[rows.start : rows.stop]]
        inside = torch.nonzero(mine >= 0)[:, 0]
        each = torch.zeros(len(inside), S, K, dtype=r.dtype)
        each[torch.arange(len(inside)), mine[inside]] = r[inside]
        total = total + r.T @ rows.phi
        apart = apart + each.view(len(inside), S * K).T @ rows.phi[inside]
    whole = total.reshape(1, -1) + head.regularizer.gradient(head.w)
    return whole - apart.reshape(S, -1)


def places(group: Tensor, wanted: Tensor) -> Tensor:
    """The place of each group among the wanted ones, by its number; -1 if it is not among them, and for -1."""
    found = torch.full((int(max(group.max(), wanted.max())) + 2,), -1)
    found[wanted] = torch.arange(len(wanted))
    return found


def gradients_without(head: Head, data: HeadData, group: Tensor, wanted: Tensor, W: Tensor) -> Tensor:
    """(S, P) the gradient of the objective without group s at the weights W_s, for every s."""
    S, K = len(wanted), head.outputs
    place = places(group, wanted)
    total = torch.zeros(S * K, head.size // K, dtype=W.dtype)
    for rows in data:
        for start in range(0, len(rows), step := max(64, BATCH_NUMBERS // (S * K))):
            part = slice(start, start + step)
            phi, n = rows.phi[part], len(rows.phi[part])
            f = (phi @ W.view(S * K, -1).T).view(n * S, K)
            y = rows.y[part].repeat_interleave(S, 0) if S > 1 else rows.y[part]
            r = head.family.residual(y, f).view(n, S, K)
            if rows.weight is not None:
                r = r * rows.weight[part][:, None, None]
            mine = place[group[rows.start : rows.stop][part]]
            inside = torch.nonzero(mine >= 0)[:, 0]
            r[inside, mine[inside]] = 0.0
            total += r.view(n, S * K).T @ phi
    return total.view(S, -1) + head.regularizer.gradient(W)


def solve_alone(
    head: Head, data: HeadData, group: Tensor, which: int, w: Tensor, tolerance: float, inverse: HeadInverse
) -> tuple[Tensor, float]:
    """The weights without one group, by damped Newton steps with the Hessian of the retained rows.

    A head that is too wide for its Hessian keeps the approximate inverse, with shorter steps.
    """
    w = head.w.clone() if not bool(w.isfinite().all()) else w.clone()
    wide, relative = head.size > MAX_EXACT_WEIGHTS, float("inf")
    for _ in range(2 * MAX_STEPS):
        value, gradient, G = evaluate_without(head, data, group, which, w, hessian=not wide)
        if wide:
            step = -inverse.solve(gradient)
        else:
            step = -torch.cholesky_solve(gradient[:, None], cholesky(head.complete(G)))[:, 0]
        slope, length = float(gradient @ step), 1.0
        while length > 1e-6:
            moved = evaluate_without(head, data, group, which, w + length * step)[0]
            if moved <= value + 1e-4 * length * slope or abs(slope) < 1e-12 * (1 + abs(value)):
                break
            length /= 2
        w = w + length * step
        relative = float(step.norm() / w.norm().clamp(min=1e-300))
        if relative <= (tolerance if wide else tolerance**0.5) and length == 1.0:
            return w, relative if wide else relative**2  # Newton's error is the square of its step
    return w, relative


def evaluate_without(
    head: Head, data: HeadData, group: Tensor, which: int, w: Tensor, hessian: bool = False
) -> tuple[float, Tensor, Tensor]:
    """Value, gradient (P,) and, if requested, curvature (P, P) of the objective without a group."""
    size = head.size if hessian else 0
    value, gradient, G = head.regularizer.value(w), head.regularizer.gradient(w), torch.zeros(size, size).to(w)
    for rows in data:
        kept = group[rows.start : rows.stop] != which
        phi, y = rows.phi[kept], rows.y[kept]
        v = None if rows.weight is None else rows.weight[kept]
        f = head.predict(phi, w)
        loss, r = head.family.loss(y, f), head.family.residual(y, f)
        value = value + (loss if v is None else loss * v).sum()
        gradient = gradient + ((r if v is None else r * v[:, None]).T @ phi).reshape(-1)
        if hessian:
            G += glm_hessian(phi, head.family, f, v, y)
    return float(value), gradient, G
