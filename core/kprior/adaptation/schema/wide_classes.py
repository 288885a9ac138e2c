"""Other classes of a wide GLM: a start for the passes that certify it.

Old outputs keep their weights and their blocks of curvature. A new class gets the weights that separate its examples
from the memory, in which each row represents many: a logistic regression whose offset is the old outputs. The sums at
the anchor are unknown then, so the result has no bound before the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.curvature import Blocks, Curvature, Full, kind_for
from core.kprior.curvature.estimate import estimate_curvature
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.examples import Data, EncodedExamples, Examples, chunks_of
from core.kprior.memory.memory import remember
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.solvers.preconditioned_lbfgs import (
    DescentProblem,
    ValueAndGradient,
    no_projection,
    preconditioned_lbfgs,
)
from core.kprior.state import State
from core.kprior.state.anchor import Anchor

MAX_ADDED_ROWS = 2_000
"""Largest number of added rows that a new class is fitted to; the others count through larger weights."""
MAX_ITERATIONS, PRECISION = 100, 1e-3
"""The end of such a fit: this many passes over its rows, or a gradient that is this fraction of the first one."""


@dataclass(frozen=True)
class RowsAtHand:
    """The memory, whose rows represent all old examples, and the added examples."""

    phi: Tensor
    """(n, D) features."""
    y: Tensor
    """(n, K_new) labels."""
    weight: Tensor
    """(n,) number of examples that a row represents."""


def change_wide_classes(
    state: State,
    rows: Examples,
    new: Predictor,
    regularizer: L2,
    classes: Tensor,
    shift: Tensor,
    added: Sequence[Data],
) -> State:
    """The state in terms of other classes.

    `rows` are those of the memory, in its order and with their new labels. `classes` (K_new, K_old) maps old outputs to
    new ones, and `shift` (K_new,) is added to their biases.
    """
    fresh = ~(classes != 0).any(1)
    W = classes @ state.w.view(state.predictor.family.outputs, -1)
    W[:, -1] += shift
    hand = rows_at_hand(state, rows, new, added)
    offset = torch.logsumexp(hand.phi @ W[~fresh].T, 1)
    for k in torch.nonzero(fresh & (hand.y != 0).any(0))[:, 0].tolist():
        W[k] = fit_class(hand, k, offset, W[k], regularizer.delta.view(len(W), -1)[k])
    w = W.reshape(-1)
    curvature = carry_curvature(state, rows, new, w, classes, hand)
    remembered = remember(new, w, rows, state.memory.weight, state.memory.generation)
    surrogate = Surrogate.zeros(new)
    if surrogate is not None:
        surrogate.add(new, w, rows.x, hand.weight[: len(rows)])
    anchor = Anchor(w, torch.zeros_like(w), curvature, exact=False)
    return State(new, regularizer, state.regularizer_spec, w, anchor, remembered, state.count, surrogate)


def rows_at_hand(state: State, rows: Examples, new: Predictor, added: Sequence[Data]) -> RowsAtHand:
    """Features, labels and weights of the memory and of the added rows."""
    parts = [(rows, state.memory.weight.double())]
    chunks = list(chunks_of(added))
    every = max(1, -(-sum(map(len, chunks)) // MAX_ADDED_ROWS))
    for chunk in chunks:
        some = chunk.take(torch.arange(0, len(chunk), every))
        parts.append((some, torch.full((len(some),), len(chunk) / len(some), dtype=torch.float64)))
    weights = [v if (own := new.weigh(part)) is None else v * own for part, v in parts]
    return RowsAtHand(
        torch.cat([new.features(part.x).double() for part, _ in parts]),
        torch.cat([part.y.double() for part, _ in parts]),
        torch.cat(weights),
    )


def fit_class(hand: RowsAtHand, k: int, offset: Tensor, start: Tensor, delta: Tensor) -> Tensor:
    """Weights of output k that separate its rows from the others, whose log odds are the offset."""
    phi, v, y = hand.phi, hand.weight, hand.y[:, k]

    def evaluate(u: Tensor, careful: bool) -> ValueAndGradient:
        f = phi @ u - offset
        loss = v @ (torch.nn.functional.softplus(f) - y * f) + delta @ u**2 / 2
        return ValueAndGradient(float(loss), phi.T @ (v * (torch.sigmoid(f) - y)) + delta * u)

    # the curvature where half of the rows have the class: an upper bound of the diagonal
    scale = (v @ phi**2 / 4 + delta).clamp(min=1e-12)
    problem = DescentProblem(evaluate, lambda u: u / scale.to(u), no_projection)
    target = max(PRECISION * float(evaluate(start, False).gradient.norm()), 1e-300)
    found = preconditioned_lbfgs(
        problem, start, near=lambda u, gradient: float(gradient.norm()) / target, enough=None, max_passes=MAX_ITERATIONS
    ).w
    return found if bool(found.isfinite().all()) else start


def carry_curvature(
    state: State, rows: Examples, new: Predictor, w: Tensor, classes: Tensor, hand: RowsAtHand
) -> Curvature:
    """The curvature of old outputs as it was, and that of new ones from the rows at hand."""
    old = state.curvature
    if kind_for(new) != "blocks" or not isinstance(old, Blocks | Full):
        sample = EncodedExamples(rows.key, new.features(rows.x).float(), rows.y, new.weigh(rows))
        return estimate_curvature(new, w, [sample], state.count, 0)
    K = state.predictor.family.outputs
    D = len(w) // len(classes)
    if isinstance(old, Full):
        own = torch.stack([old.matrix.view(K, D, K, D)[k, :, k] for k in range(K)]).float()
        drawn, weight = torch.full((K, 0), -1), torch.zeros(K, 0)
        count = torch.tensor(float(state.count), dtype=torch.float64)
    else:
        own, drawn, weight, count = old.matrices, old.drawn, old.weight, old.count
    E = classes != 0
    matrices = torch.einsum("ak,kde->ade", E.to(own), own)
    # the contributions of sampled rows can only be removed from outputs with one predecessor
    before = torch.where(E.any(1), E.int().argmax(1), 0).cpu()
    single = (E.sum(1) == 1).cpu()[:, None]
    drawn = torch.where(single, drawn[before], -1)
    weight = torch.where(single.to(weight.device), weight[before.to(weight.device)], 0.0)
    mean = new.family.mean(hand.phi @ w.view(len(classes), -1).T)
    for k in torch.nonzero(~E.any(1))[:, 0].tolist():
        variance = hand.weight * mean[:, k] * (1 - mean[:, k])
        matrices[k] = ((hand.phi * variance[:, None]).T @ hand.phi).float()
    return Blocks(matrices, drawn, weight, count.clone())
