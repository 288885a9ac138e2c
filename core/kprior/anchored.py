"""Adaptation of a GLM whose Hessian fits: exact sums at the anchor, and a certificate without a pass.

The past is a quadratic around the anchor, examples at hand (the memory, and what is added) enter by their own losses.
This is the K-prior of `objective/build.py` with w* = w0, v = 1 and Q what the examples at hand leave of G. A change of
m examples costs O(m P^2 + P^3), whatever the past.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.kprior.anchor import Anchor
from core.kprior.certificate.anchored import AnchoredBound, ExactRows, anchored_bound, known_gradient
from core.kprior.cost import Cost
from core.kprior.curvature import Full, cholesky, ggn_rows, glm_hessian
from core.kprior.data.examples import Data, Examples, concatenate, rereadable
from core.kprior.measurement import smallest_eigenvalue
from core.kprior.memory.memory import Memory, MemoryPolicy, remember
from core.kprior.memory.sampling import uniform
from core.kprior.model.gauge import ground, shift_directions, without_shift
from core.kprior.model.predictor import Predictor
from core.kprior.model.regularizers import L2
from core.kprior.objective.objective import Objective
from core.kprior.objective.surrogate import Surrogate
from core.kprior.objective.tasks import Change
from core.kprior.objective.terms import Term
from core.kprior.objective.transfer import new_regularizer
from core.kprior.passes.leverage import spread_leverage
from core.kprior.passes.rounding import round_up
from core.kprior.passes.statistics import Statistics
from core.kprior.solvers import SolverError, Training
from core.kprior.solvers.newton import newton
from core.kprior.state import State, align, check_keys

EXACT_NUMBERS = 2**25
"""Features of added examples up to this many numbers are kept at hand; the rest counts by its tangent alone."""


@dataclass(frozen=True)
class Anchored:
    """A GLM on the way from one state to the next: the sums after the change, and the examples at hand."""

    predictor: Predictor
    regularizer: L2
    anchor: Anchor
    factor: Tensor
    """The Cholesky factor of G + delta, gauge filled in."""
    exact: tuple[ExactRows, ...]
    memory: Memory
    rows: Examples
    """Those that the memory refers to."""
    count: int
    surrogate: Surrogate | None

    @classmethod
    def of(cls, state: State, memory: Examples) -> Anchored:
        """A state as it is."""
        rows = align(state, memory)
        factor = cholesky(hessian_of(state.predictor, state.regularizer, state.anchor))
        exact = (exact_rows(state.predictor, state.anchor.w, rows),)
        kept = (state.memory, rows, state.count, state.surrogate)
        return cls(state.predictor, state.regularizer, state.anchor, factor, exact, *kept)

    def solve(self, start: Tensor, training: Training, cost: Cost) -> Tensor:
        """The minimiser of the anchored objective."""
        shifts = shift_directions(self.predictor, self.regularizer.delta)
        w = self.solve_by_chords(without_shift(start, shifts), cost)
        if w is None:
            objective = self.objective()
            try:
                w = newton(objective, start, training, cost).w
            except SolverError:
                # a model that is far too sure has no curvature left to start from; at zero there is all of it
                w = newton(objective, torch.zeros_like(start), training, cost).w
        return without_shift(w, shifts)

    def solve_by_chords(self, w: Tensor, cost: Cost) -> Tensor | None:
        """Newton steps with the Hessian of the anchor: no curvature is computed; None where they do not converge."""
        before = math.inf
        for _ in range(60):
            k = known_gradient(self.predictor, self.anchor, self.regularizer, self.exact, w)
            cost.backward_passes += sum(len(rows.phi) for rows in self.exact)
            step = -torch.cholesky_solve(k[:, None], self.factor)[:, 0]
            size = math.sqrt(max(0.0, -float(k @ step))) if bool(k.isfinite().all()) else math.inf
            if size > 0.5 * before:
                # either rounding is all that is left, or outputs move too far for the anchor's curvature
                return w if before <= 1e-7 * (1 + self.length(w)) else None
            w, before = w + step, size
            if size <= 1e-13 * (1 + self.length(w)):
                return w
        return None

    def spread(self, w: Tensor) -> float:
        """How far the outputs of any example at hand are from where they were at the anchor."""
        changes = [rows.outputs(w) - rows.f0 for rows in self.exact if len(rows.phi)]
        return max((float(self.predictor.family.spread(change).max()) for change in changes), default=0.0)

    def bound(self, w: Tensor) -> AnchoredBound:
        """How far from the retrain the weights w can be."""
        return anchored_bound(self.predictor, self.anchor, self.regularizer, self.exact, w, self.factor)

    def state(self, w: Tensor, spec: dict[str, Any]) -> State:
        """The next state, with the weights w."""
        parts = (self.anchor, self.memory, self.count, self.surrogate)
        return State(self.predictor, self.regularizer, spec, w, *parts)

    def length(self, w: Tensor) -> float:
        """|w|_H."""
        return float((self.factor.T @ w).norm())

    def solve_by_secants(self, w: Tensor, training: Training, cost: Cost) -> Tensor:
        """A better guess where outputs move so far that tangents mean little: no bound speaks for either.

        The curvature of examples that are not at hand is scaled by the root of how the mean slope of h between f0 and f
        compares with h'(f0) on the memory: sum v (h - h0)(f - f0) / sum v (f - f0)' h'(f0) (f - f0). The root, halfway
        between both, did better on retained rows than either: a small memory estimates the ratio roughly.
        """
        family, rows, v = self.predictor.family, self.exact[0], self.memory.weight
        step = rows.outputs(w) - rows.f0
        tangent = float((v * (step * rows.tangent(family, step)).sum(1)).sum())
        secant = float((v * ((family.mean(rows.f0 + step) - family.mean(rows.f0)) * step).sum(1)).sum())
        if not (tangent > 0 and secant > 0):
            return w
        shifts = shift_directions(self.predictor, self.regularizer.delta)
        return without_shift(newton(self.objective(math.sqrt(secant / tangent)), w, training, cost).w, shifts)

    def objective(self, scale: float = 1.0) -> Objective:
        """The same as an objective that Newton's method can evaluate anywhere; examples not at hand may be scaled."""
        assert isinstance(self.anchor.curvature, Full)
        family, delta = self.predictor.family, self.regularizer.delta
        outside = self.anchor.curvature.matrix.clone()
        linear = self.anchor.gradient
        if self.regularizer.linear is not None:
            linear = linear + self.regularizer.linear
        objective = Objective(self.predictor, delta, linear, centre=self.anchor.w)
        for rows in self.exact:
            if len(rows.phi):
                outside -= glm_hessian(rows.phi, family, rows.f0)
                objective.terms.append(Term.of_features(self.predictor, rows.phi, family.mean(rows.f0)))
        objective.curvature = Full(scale * outside)
        objective.curvature.clip()
        return objective


def change_sums(
    state: State, memory: Examples, change: Change, policy: MemoryPolicy, training: Training, cost: Cost
) -> Anchored:
    """Take removed examples out of the sums and added ones in, at the anchor; note what that does to every figure."""
    predictor, anchor = state.predictor, state.anchor
    regularizer = new_regularizer(state, change, predictor)
    assert isinstance(anchor.curvature, Full)
    gone, come = Moved.of(predictor, anchor.w, change.removed), Moved.of(predictor, anchor.w, change.added)
    check_keys(state, gone.keys, come.keys)
    check_removed(state, gone)
    count = state.count - len(gone.keys) + len(come.keys)
    if count <= 0:
        raise ValueError("no examples are left: there is nothing a model could stand for")
    cost.backward_passes += len(gone.keys) + len(come.keys)
    G = Full(anchor.curvature.matrix - gone.sums.curvature_matrix + come.sums.curvature_matrix)
    if not anchor.exact:
        G.clip()  # what is taken away may be more than an estimate has of it
    moved = Anchor(
        anchor.w,
        anchor.gradient - gone.sums.gradient + come.sums.gradient,
        G,
        anchor.exact,
        rounding=round_up(anchor.rounding + gone.sums.rounding + come.sums.rounding),
        mass=round_up(anchor.mass + gone.mass + come.mass),
    )
    H = hessian_of(predictor, regularizer, moved)
    definite = int(torch.linalg.cholesky_ex(H)[1]) == 0
    factor = cholesky(H)
    ratio = shrinkage(state, regularizer, gone, H, factor)
    reach, peak, smallest = anchor.reach * ratio, anchor.peak * ratio, anchor.smallest / ratio
    if regularizer is not state.regularizer:
        smallest = max(smallest, smallest_eigenvalue(H))
    if not definite:  # the factor is that of another matrix: nothing follows from it
        reach, peak, smallest = math.inf, math.inf, 0.0
    kept, rows, reach, peak = renew_memory(state, memory, gone, come, policy, training, factor, reach, peak, count)
    exact = [exact_rows(predictor, anchor.w, rows)]
    if come.phi is not None:
        left = ~torch.isin(come.keys, kept.key)
        exact.append(ExactRows(come.phi[left], come.phi[left] @ anchor.w.view(predictor.family.outputs, -1).T))
    moved = replace(moved, reach=round_up(reach), peak=round_up(peak), smallest=smallest)
    surrogate = None if state.surrogate is None else state.surrogate.copy()
    if surrogate is not None:
        for sign, examples in ((-1.0, gone.examples()), (1.0, come.examples())):
            for chunk in examples:
                surrogate.add(predictor, anchor.w, chunk.x, torch.full((len(chunk),), sign, device=predictor.device))
    return Anchored(predictor, regularizer, moved, factor, tuple(exact), kept, rows, count, surrogate)


@dataclass(frozen=True)
class Moved:
    """Examples that come or go: their sums at the anchor and, while they are few, their features."""

    keys: Tensor
    sums: Statistics
    phi: Tensor | None
    """(n, D); None for too many."""
    chunks: tuple[Data, ...]

    @classmethod
    def of(cls, predictor: Predictor, w: Tensor, data: Sequence[Data]) -> Moved:
        keys, features, numbers = [torch.zeros(0, dtype=torch.long)], [], 0
        sums = Statistics(predictor, w, slope=True, curvature="full", careful=True)
        for chunk in (c for part in data for c in rereadable(part) if len(c)):
            predictor.check(chunk)
            keys.append(chunk.key.cpu())
            phi = predictor.features(chunk.x)
            sums.add_encoded(phi, chunk.y.to(phi))
            numbers += phi.numel()
            if numbers <= EXACT_NUMBERS:
                features.append(phi)
        few = numbers <= EXACT_NUMBERS and features
        return cls(torch.cat(keys), sums, torch.cat(features) if few else None, tuple(data))

    @property
    def mass(self) -> float:
        return float(self.sums.curvature_matrix.diagonal().sum())

    def examples(self) -> Iterator[Examples]:
        """The examples themselves, chunk by chunk."""
        yield from (c for part in self.chunks for c in part if len(c))


def check_removed(state: State, gone: Moved) -> None:
    """Removed examples that are remembered must be those that are remembered: others would spoil all sums."""
    if gone.phi is None or len(gone.keys) == 0:
        return
    here = torch.nonzero(torch.isin(gone.keys, state.memory.key))[:, 0]
    place = torch.searchsorted(state.memory.key, gone.keys[here])  # keys of a memory are in order
    f = gone.phi[here] @ state.anchor.w.view(state.predictor.family.outputs, -1).T
    soft = state.memory.soft[place].to(f)
    if not torch.allclose(state.predictor.family.mean(f), soft, rtol=1e-3, atol=1e-4):
        raise ValueError("a removed example is not the one that the state remembers under its key")


def shrinkage(state: State, regularizer: L2, gone: Moved, H: Tensor, factor: Tensor) -> float:
    """The smallest t, or a little more, for which H before the change is at most t times H after it.

    By as much, at the most, lengths in the norm of H^-1 have grown. Where the penalty stays and few examples go, it is
    one plus the largest eigenvalue of what they took, in the norm of what is left: the Gram matrix of their rows.
    """
    predictor, anchor = state.predictor, state.anchor
    same = regularizer is state.regularizer
    if same and len(gone.keys) == 0:
        return 1.0
    few = gone.phi is not None and len(gone.keys) * predictor.family.outputs <= len(H) // 2
    if same and few:
        taken = torch.cat([ggn_rows(predictor, anchor.w, chunk.x) for chunk in gone.examples()])
        white = torch.linalg.solve_triangular(factor, taken.T, upper=False)
        return 1 + float(torch.linalg.eigvalsh(white.T @ white)[-1])
    before = hessian_of(predictor, state.regularizer, anchor)
    half = torch.linalg.solve_triangular(factor, before, upper=False)
    whole = torch.linalg.solve_triangular(factor, half.T.contiguous(), upper=False)
    return max(0.0, float(torch.linalg.eigvalsh((whole + whole.T) / 2)[-1])) + 1e-12


def renew_memory(
    state: State,
    memory: Examples,
    gone: Moved,
    come: Moved,
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
    stays = ~torch.isin(state.memory.key, gone.keys)
    rows, weight = align(state, memory).take(stays), state.memory.weight.cpu()[stays].double()
    soft = state.memory.soft[stays.to(state.memory.soft.device)]
    parts, weights, softs = [rows], [weight], [soft]
    room = policy.size(count) - len(rows)
    drawn = uniform(rows.key[weight > 1], training.seed)
    threshold = float(drawn.max()) if len(drawn) else 0.0
    root, everything = None, policy.size(count) >= count or len(rows) == 0
    for chunk in come.examples():
        phi = predictor.features(chunk.x)
        if root is None:
            root = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
        leverage = (spread_leverage(phi, root) * (1 + 1e-6)).cpu()
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


def hessian_of(predictor: Predictor, regularizer: L2, anchor: Anchor) -> Tensor:
    """G + delta at the anchor, with the flat directions of a softmax filled in."""
    assert isinstance(anchor.curvature, Full)
    H = anchor.curvature.matrix + torch.diag(regularizer.delta)
    return ground(H, shift_directions(predictor, regularizer.delta))


def exact_rows(predictor: Predictor, w: Tensor, rows: Examples) -> ExactRows:
    """Examples at hand, as the anchor sees them."""
    phi = predictor.features(rows.x)
    return ExactRows(phi, phi @ w.view(predictor.family.outputs, -1).T)


def recentre(state: State, memory: Examples) -> State:
    """The state with its anchor at the served weights, as far as the sums and the memory tell: an estimate."""
    if torch.equal(state.w, state.anchor.w):
        return state
    predictor, anchor = state.predictor, state.anchor
    if not isinstance(anchor.curvature, Full):
        return recentre_roughly(state, memory)
    here = Anchored.of(state, memory)
    gradient = known_gradient(predictor, anchor, state.regularizer, here.exact, state.w)
    G = anchor.curvature.matrix.clone()
    for rows in here.exact:
        G += glm_hessian(rows.phi, predictor.family, rows.outputs(state.w))
        G -= glm_hessian(rows.phi, predictor.family, rows.f0)
    curvature = Full(G)
    curvature.clip()
    moved = Anchor(state.w, gradient - state.regularizer.gradient(state.w), curvature)
    old = state.memory
    fresh = remember(predictor, state.w, here.rows, old.weight, old.generation)
    surrogate = None if state.surrogate is None else state.surrogate.copy()
    if surrogate is not None:
        surrogate.replace(predictor, anchor.w, state.w, here.rows.x, old.weight)
    return replace(state, anchor=moved, memory=fresh, surrogate=surrogate)


def recentre_roughly(state: State, memory: Examples) -> State:
    """The same for a state that has less than its whole curvature."""
    anchor, old = state.anchor, state.memory
    gradient = anchor.gradient
    if anchor.curvature is not None:
        gradient = gradient + anchor.curvature.product(state.w - anchor.w)
    moved = Anchor(state.w, gradient, anchor.curvature)
    rows = align(state, memory)
    fresh = remember(state.predictor, state.w, rows, old.weight, old.generation)
    surrogate = None if state.surrogate is None else state.surrogate.copy()
    if surrogate is not None:
        surrogate.replace(state.predictor, anchor.w, state.w, rows.x, old.weight)
    return replace(state, anchor=moved, memory=fresh, surrogate=surrogate)
