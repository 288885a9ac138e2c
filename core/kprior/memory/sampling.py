"""Priority sampling from a stream: which examples stay, and how many each of them stands for.

Each example gets a score s and a priority s / u, u uniform from a hash of its key; the m best stay, and with the
(m+1)-th priority tau each stands for max(1, tau / s) examples (Duffield, Lund & Thorup 2007): sums over what stays
are unbiased for sums over the stream, and a sampler that keeps everything gives weights one.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples, concatenate


class PrioritySampler:
    """Keeps the best of a stream for one class (or for all)."""

    def __init__(self, size: int, sampled: bool, seed: int, uniform_scores: bool = False) -> None:
        self.size, self.sampled, self.seed, self.uniform_scores = size, sampled, seed, uniform_scores
        self._total = 0.0
        self._rows: Examples | None = None
        self._priority = torch.zeros(0, dtype=torch.float64)
        self._weight = torch.zeros(0, dtype=torch.float64)

    def empty(self) -> PrioritySampler:
        """One that keeps by the same rule."""
        return PrioritySampler(self.size, self.sampled, self.seed, self.uniform_scores)

    def offer(self, examples: Examples, score: Tensor, weight: Tensor | None = None) -> None:
        """Take the next examples of the stream; `weight` is what each stands for already."""
        score = score.double().cpu().clamp(min=1e-300)
        weight = torch.ones_like(score) if weight is None else weight.double().cpu()
        self._total += float(weight.sum())
        if self.sampled:
            score = score * weight / uniform(examples.key, self.seed)
        self._keep_best(examples, score, weight)

    def _keep_best(self, rows: Examples, priority: Tensor, weight: Tensor) -> None:
        rows = rows if self._rows is None else concatenate([self._rows, rows])
        priority, weight = torch.cat([self._priority, priority]), torch.cat([self._weight, weight])
        # one more than asked for: the first that did not get in is the threshold
        best = torch.argsort(priority, descending=True, stable=True)[: self.size + 1]
        self._rows, self._priority, self._weight = rows.take(best), priority[best], weight[best]

    @property
    def threshold(self) -> float:
        """The priority of the first that did not get in; zero if all did."""
        return float(self._priority[self.size]) if len(self._priority) > self.size else 0.0

    @property
    def highest(self) -> float:
        """The highest priority of all."""
        return float(self._priority[0]) if len(self._priority) else 0.0

    def sums(self) -> Tensors:
        """All that was kept, by name."""
        if self._rows is None:
            return {}
        kept = {
            "priority": self._priority,
            "weight": self._weight,
            "total": torch.tensor(self._total, dtype=torch.float64),
        }
        own = {} if self._rows.weight is None else {"own": self._rows.weight}
        return {"key": self._rows.key, "x": self._rows.x, "y": self._rows.y, **own, **kept}

    def with_sums(self, sums: Tensors) -> Self:
        """The inverse of `sums`."""
        self._rows = Examples(sums["key"], sums["x"], sums["y"], sums.get("own"))
        self._priority, self._weight, self._total = sums["priority"], sums["weight"], float(sums["total"])
        return self

    def merge(self, other: PrioritySampler) -> None:
        """Take what another sampler kept of another shard of the stream."""
        if other._rows is not None:
            self._total += other._total
            self._keep_best(other._rows, other._priority, other._weight)

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
    """A random-looking number from each key and the seed: splitmix64, so that any split of a stream agrees.

    Parameters
    ----------
    key
        (n,) int64.
    seed
        Another seed gives other numbers.

    Returns
    -------
    Tensor
        (n,) float64 in (0, 1].

    Examples
    --------
    >>> first, again = uniform(torch.tensor([5, 6]), 0), uniform(torch.tensor([6, 5]), 0)
    >>> bool((first == again.flip(0)).all()), bool(((first > 0) & (first <= 1)).all())
    (True, True)
    """
    with np.errstate(over="ignore"):
        z = key.cpu().numpy().astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy(((z >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53)
