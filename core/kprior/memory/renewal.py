"""The memory of a GLM after a change, and how far the examples outside it can move the curvature."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from core.kprior.data.examples import Examples, concatenate
from core.kprior.memory.memory import Memory, MemoryPolicy
from core.kprior.memory.sampling import uniform
from core.kprior.passes.leverage import leverage_roots, leverages
from core.kprior.solvers.base import Training
from core.kprior.state import State, align


def renew_memory(
    state: State,
    memory: Examples,
    removed_keys: Tensor,
    added: Iterable[Examples],
    policy: MemoryPolicy,
    training: Training,
    factor: Tensor,
    reach: float,
    peak: float,
    count: int,
) -> tuple[Memory, Examples, float, float]:
    """The memory after the change, its rows, and the figures that speak of examples outside it.

    Removed examples leave it. Added ones come in if their leverage is above that of all others outside, or if the
    sample of the others would have drawn them, while there is room.
    """
    predictor, w = state.predictor, state.anchor.w
    stays = ~torch.isin(state.memory.key, removed_keys)
    rows, weight = align(state, memory).take(stays), state.memory.weight.cpu()[stays].double()
    soft = state.memory.soft[stays.to(state.memory.soft.device)]
    parts, weights, softs = [rows], [weight], [soft]
    room = policy.size(count) - len(rows)
    drawn = uniform(rows.key[weight > 1], training.seed)
    threshold = float(drawn.max()) if len(drawn) else 0.0
    roots, everything = None, policy.size(count) >= count or len(rows) == 0
    for chunk in added:
        phi = predictor.features(chunk.x)
        if roots is None:
            root = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
            roots = leverage_roots(root, predictor.family.outputs)
        leverage = (leverages(predictor, w, phi, chunk.y, roots) * (1 + 1e-6)).cpu()
        peak = max(peak, float(leverage.max()))
        top = leverage > reach
        chance = uniform(chunk.key, training.seed) <= threshold if threshold else torch.zeros_like(top)
        wanted = torch.nonzero(top | chance | everything)[:, 0]
        chosen = wanted[torch.argsort(leverage[wanted], descending=True, stable=True)][: max(0, room)].sort().values
        room -= len(chosen)
        left = torch.ones_like(top)
        left[chosen] = False
        if bool(left.any()):
            reach = max(reach, float(leverage[left].max()))
        parts.append(chunk.take(chosen))
        weights.append(torch.where(top[chosen] | everything, 1.0, 2.0).double())
        softs.append(predictor.family.mean(phi[chosen] @ w.view(predictor.family.outputs, -1).T))
    rows, weight, soft = concatenate(parts), torch.cat(weights), torch.cat(softs)
    sampled = weight > 1
    if bool(sampled.any()):
        weight[sampled] = max(1.0, (count - int((~sampled).sum())) / int(sampled.sum()))
    order = torch.argsort(rows.key)
    generation = state.memory.generation + 1
    kept = Memory(rows.key[order].cpu(), weight[order].to(soft), soft[order.to(soft.device)], generation)
    return kept, rows.take(order), reach, peak
