"""The memory of a GLM after a change, and bounds of the leverages of examples."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.adaptation.request import AdaptationRequest
from core.kprior.data.examples import Examples, concatenate
from core.kprior.data.keyed_random import uniform
from core.kprior.memory.memory import Memory
from core.kprior.passes.leverage import leverage_roots, leverages
from core.kprior.state import align


@dataclass(frozen=True)
class LeverageBounds:
    """Upper bounds of leverages, |phi_i|^2 in the norm of H^-1."""

    factor: Tensor
    """(P, P) the Cholesky factor of H."""
    reach: float
    """Bound for all examples outside the memory."""
    peak: float
    """Bound for all examples."""


def renew_memory(
    request: AdaptationRequest, removed_keys: Tensor, added: Iterable[Examples], bounds: LeverageBounds, count: int
) -> tuple[Memory, Examples, LeverageBounds]:
    """The memory after the change, its rows, and updated bounds of the leverages.

    Removed examples leave the memory. While there is room, an added example enters it if its leverage exceeds that of
    all examples outside, or if the random sample in the memory would have included it.
    """
    state, policy, seed = request.state, request.policy, request.training.seed
    predictor, w = state.predictor, state.anchor.w
    factor, reach, peak = bounds.factor, bounds.reach, bounds.peak
    stays = ~torch.isin(state.memory.key, removed_keys)
    rows, weight = align(state, request.memory).take(stays), state.memory.weight.cpu()[stays].double()
    soft = state.memory.soft[stays.to(state.memory.soft.device)]
    parts, weights, softs = [rows], [weight], [soft]
    room = policy.size(count) - len(rows)
    drawn = uniform(rows.key[weight > 1], seed)
    threshold = float(drawn.max()) if len(drawn) else 0.0
    roots, everything = None, policy.size(count) >= count or len(rows) == 0
    for chunk in added:
        phi = predictor.features(chunk.x)
        if roots is None:
            root = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
            roots = leverage_roots(root, predictor.family.outputs, predictor.family.coupled)
        leverage = (leverages(predictor, w, phi, chunk.y, roots) * (1 + 1e-6)).cpu()
        peak = max(peak, float(leverage.max()))
        top = leverage > reach
        chance = uniform(chunk.key, seed) <= threshold if threshold else torch.zeros_like(top)
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
    return kept, rows.take(order), LeverageBounds(factor, reach, peak)
