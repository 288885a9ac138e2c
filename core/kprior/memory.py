"""The memorable past: which examples a version remembers, and how much each of them stands for.

Selection reads a stream once. Each example gets a score s and a priority s / u, u uniform from a hash of its key;
the m best stay, and with the (m+1)-th priority tau each stands for max(1, tau / s) examples (priority sampling,
Duffield, Lund & Thorup 2007): sums over the memory are unbiased for sums over the stream, a memory that holds
everything has weights one, and parts of a stream can be selected apart and merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from core.kprior.bounds import grounded
from core.kprior.curvature import Curvature, Full, cholesky, ggn_rows, row_chunks
from core.kprior.examples import Examples, concatenate
from core.kprior.predictor import Predictor
from core.kprior.shifts import shift_directions


class Select(StrEnum):
    """How memory is chosen."""

    AUTO = "auto"
    """`leverage` where the whole curvature is known (GLMs), else `random`."""
    CURVATURE = "curvature"
    """The paper's: the largest trace of h'(f*), each standing for itself."""
    LEVERAGE = "leverage"
    """Ridge leverage against the curvature, with importance weights."""
    COVERAGE = "coverage"
    """Medoids of the encoded inputs, each standing for its cluster."""
    RANDOM = "random"
    """Uniform, each standing for N / M."""


@dataclass(frozen=True)
class MemoryPolicy:
    """How much to remember, and which examples."""

    fraction: float = 0.02
    cap: int = 5_000
    """Never more than this, whatever the fraction: an adaptation's cost must not grow with the past."""
    select: Select = Select.AUTO
    balance: bool = False
    """As many from each class."""

    def size(self, count: int) -> int:
        """How many of `count` examples to remember: at least one."""
        return max(1, min(self.cap, round(self.fraction * count)))


@dataclass(frozen=True)
class Memory:
    """References to examples, with what the version said of them. The inputs stay with the caller."""

    key: Tensor
    """(m,) int64."""
    weight: Tensor
    """(m,) how many past examples each stands for."""
    soft: Tensor
    """(m, K) soft labels h* = h(f(w*, x))."""
    generation: int = 0
    """How often memory was selected; each selection draws anew."""

    def __len__(self) -> int:
        return self.key.shape[0]


class Selector:
    """Keeps the best of a stream for one class (or for all)."""

    def __init__(self, size: int, sampled: bool, seed: int, uniform_scores: bool = False) -> None:
        self.size, self.sampled, self.seed, self.uniform_scores = size, sampled, seed, uniform_scores
        self._total = 0.0
        self._rows: Examples | None = None
        self._priority = torch.zeros(0, dtype=torch.float64)
        self._weight = torch.zeros(0, dtype=torch.float64)

    def offer(self, examples: Examples, score: Tensor, weight: Tensor | None = None) -> None:
        """Take the next examples of the stream; `weight` is what each stands for already."""
        score = score.double().cpu().clamp(min=1e-300)
        weight = torch.ones_like(score) if weight is None else weight.double().cpu()
        self._total += float(weight.sum())
        if self.sampled:
            score = score * weight / uniform(examples.key, self.seed)
        rows = examples if self._rows is None else concatenate([self._rows, examples])
        priority = torch.cat([self._priority, score])
        weight = torch.cat([self._weight, weight])
        # one more than asked for: the first that did not get in is the threshold
        best = torch.argsort(priority, descending=True, stable=True)[: self.size + 1]
        self._rows, self._priority, self._weight = rows.take(best), priority[best], weight[best]

    def merge(self, other: Selector) -> None:
        """Take what another selector kept of another part of the stream."""
        if other._rows is None:
            return
        mine = self._rows
        self._total += other._total
        rows = other._rows if mine is None else concatenate([mine, other._rows])
        priority = torch.cat([self._priority, other._priority])
        weight = torch.cat([self._weight, other._weight])
        best = torch.argsort(priority, descending=True, stable=True)[: self.size + 1]
        self._rows, self._priority, self._weight = rows.take(best), priority[best], weight[best]

    def take(self) -> tuple[Examples, Tensor] | None:
        """The chosen examples and their weights, in the order of their keys; None if none came."""
        if self._rows is None or len(self._rows) == 0:
            return None
        n = min(self.size, len(self._rows))
        weight = self._weight[:n]
        if self.sampled and len(self._rows) > self.size:
            share = (self._priority[:n] * uniform(self._rows.key[:n], self.seed)) / self._priority[self.size]
            weight = weight / share.clamp(max=1)
            if self.uniform_scores:
                weight = weight * (self._total / weight.sum())  # the count is known: only the choice is left to chance
        order = torch.argsort(self._rows.key[:n].cpu())
        return self._rows.take(order), weight[order]


def uniform(key: Tensor, seed: int) -> Tensor:
    """A number in (0, 1] from each key and the seed: splitmix64, so that any split of a stream agrees."""
    with np.errstate(over="ignore"):
        z = key.cpu().numpy().astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy(((z >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53)


class MemorySelection:
    """One selection over a stream of examples, by one rule."""

    def __init__(
        self,
        policy: MemoryPolicy,
        size: int,
        predictor: Predictor,
        w: Tensor,
        curvature: Curvature | None,
        delta: Tensor,
        seed: int,
    ) -> None:
        select = policy.select
        if select is Select.AUTO:
            full = curvature is not None and curvature.kind == "full"
            select = Select.LEVERAGE if full else Select.RANDOM
        if select is Select.LEVERAGE and curvature is None:
            raise ValueError("selection by leverage needs curvature")
        self.select, self.size, self.predictor, self.w, self.seed = select, size, predictor, w, seed
        self.balance = policy.balance and predictor.family.name in ("bernoulli", "categorical")
        self._leverage, self._inverse = None, None
        if curvature is not None and select is Select.LEVERAGE:
            if predictor.linear and isinstance(curvature, Full):
                whole = grounded(curvature.matrix + torch.diag(delta), shift_directions(predictor, delta))
                self._inverse = torch.cholesky_inverse(cholesky(whole))
            else:
                self._leverage = curvature.leverage(delta)
        self._selectors: dict[int, Selector] = {}

    def offer(self, examples: Examples, weight: Tensor | None = None) -> None:
        """Take the next examples of the stream."""
        score = self._score(examples)
        if not self.balance:
            self._selector(0).offer(examples, score, weight)
            return
        label = classes_of(examples.y)
        for c in label.unique().tolist():
            here = label == c
            self._selector(c).offer(examples.take(here), score[here.cpu()], None if weight is None else weight[here])

    def _selector(self, label: int) -> Selector:
        if label not in self._selectors:
            size = self.size
            if self.balance:
                size = max(1, size // max(2, self.predictor.family.outputs))
            if self.select is Select.COVERAGE:
                size = max(2_000, 4 * size)  # a pool to find the medoids in
            self._selectors[label] = Selector(
                size, self.select is not Select.CURVATURE, self.seed, self.select in (Select.RANDOM, Select.COVERAGE)
            )
        return self._selectors[label]

    def _score(self, examples: Examples) -> Tensor:
        n = len(examples)
        if self.select in (Select.RANDOM, Select.COVERAGE):
            return torch.ones(n, dtype=torch.float64)
        if self.select is Select.CURVATURE:
            return self.predictor.family.variance(self.predictor.outputs(self.w, examples.x)).sum(1).cpu()
        if self._inverse is not None:
            return self._leverage_of_glm(self._inverse, examples)
        assert self._leverage is not None
        parts, step = [], row_chunks(self.predictor, n).step
        for i in range(0, n, step):
            rows = ggn_rows(self.predictor, self.w, examples.x[i : i + step])
            parts.append(self._leverage(rows).reshape(-1, self.predictor.family.outputs).sum(1))
        return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.float64)

    def _leverage_of_glm(self, inverse: Tensor, examples: Examples) -> Tensor:
        """sum_kl h'_kl phi' (B^-1)_kl phi: the rows of a GLM's Jacobian are mostly zeros and need not be made."""
        phi, K = self.predictor.features(examples.x), self.predictor.family.outputs
        blocks = inverse.view(K, phi.shape[1], K, phi.shape[1])
        score = torch.zeros(len(phi), dtype=phi.dtype, device=phi.device)
        for rows, hessian in self.predictor.family.hessians(phi @ self.w.view(K, -1).T):
            part = phi[rows]
            if phi.shape[1] < K:  # one large product instead of many small ones
                pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), -1)
                form = pairs @ blocks.transpose(1, 2).reshape(K * K, -1).T
                score[rows] = (hessian.reshape(len(part), -1) * form).sum(1)
                continue
            for k in range(K):
                for j in range(K):
                    score[rows] += hessian[:, k, j] * ((part @ blocks[k, :, j]) * part).sum(1)
        return score.cpu()

    def take(self, generation: int = 0) -> tuple[Memory, Examples]:
        """The memory, with soft labels of the weights at hand, and the rows it refers to."""
        taken = [t for _, s in sorted(self._selectors.items()) if (t := s.take()) is not None]
        if not taken:
            raise ValueError("there is nothing to remember: no examples")
        if self.select is Select.COVERAGE:
            quota = max(1, self.size // len(taken))
            taken = [medoids(self.predictor, rows, weight, quota, self.seed) for rows, weight in taken]
        rows = concatenate([r for r, _ in taken])
        weight = torch.cat([v for _, v in taken])
        return remember(self.predictor, self.w, rows, weight, generation), rows


def remember(predictor: Predictor, w: Tensor, rows: Examples, weight: Tensor, generation: int) -> Memory:
    """A memory of the given rows, with soft labels of the weights w."""
    soft = predictor.family.mean(predictor.outputs(w, rows.x))
    return Memory(rows.key.cpu(), weight.to(soft), soft, generation)


def classes_of(y: Tensor) -> Tensor:
    """(n, K) targets -> (n,) class numbers."""
    return (y[:, 0] > 0.5).long() if y.shape[1] == 1 else y.argmax(1)


def medoids(
    predictor: Predictor, rows: Examples, weight: Tensor, size: int, seed: int, rounds: int = 10
) -> tuple[Examples, Tensor]:
    """`size` medoids of the encoded inputs by k-means from a spread-out start; weights are sums over clusters."""
    if len(rows) <= size:
        return rows, weight
    z = predictor.encode(rows.x).flatten(1)
    generator = torch.Generator().manual_seed(seed)
    start = int(torch.randint(len(z), (1,), generator=generator))
    chosen, nearest = [start], ((z - z[start]) ** 2).sum(1)
    for _ in range(size - 1):
        odds = nearest.double().cpu().clamp(min=0) + 1e-30
        chosen.append(int(torch.multinomial(odds, 1, generator=generator)))
        nearest = torch.minimum(nearest, ((z - z[chosen[-1]]) ** 2).sum(1))
    centres = z[chosen]
    v = weight.to(z)
    for _ in range(rounds):
        cluster = torch.cdist(z, centres).argmin(1)
        mass = torch.zeros(size, dtype=z.dtype, device=z.device).index_add_(0, cluster, v)
        total = torch.zeros_like(centres).index_add_(0, cluster, z * v[:, None])
        centres = torch.where(mass[:, None] > 0, total / mass.clamp(min=1e-30)[:, None], centres)
    distance = torch.cdist(z, centres)
    cluster = distance.argmin(1)
    mass = torch.zeros(size, dtype=z.dtype, device=z.device).index_add_(0, cluster, v)
    full = torch.nonzero(mass > 0)[:, 0].tolist()
    index = torch.tensor([int(torch.where(cluster == c, distance[:, c], torch.inf).argmin()) for c in full])
    return rows.take(index), mass[full].double().cpu()
