"""Priority sampling from a stream: which examples stay, and how many each of them represents.

Each example has a score s and a priority s / u, where u is a uniform number from a hash of its key. The m examples with
the highest priorities are kept; with the (m+1)-th priority tau, each represents max(1, tau / s) examples (Duffield,
Lund & Thorup 2007). Sums over the sample are unbiased estimates of sums over the stream. If everything is kept, all
weights are one.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples, concatenate
from core.kprior.data.keyed_random import uniform


class PrioritySampler:
    """Keeps the rows of a stream with the highest priorities, for one class or for all."""

    def __init__(self, size: int, sampled: bool, seed: int, uniform_scores: bool = False) -> None:
        self.size, self.sampled, self.seed, self.uniform_scores = size, sampled, seed, uniform_scores
        self._total = 0.0
        self._rows: Examples | None = None
        self._priority = torch.zeros(0, dtype=torch.float64)
        self._weight = torch.zeros(0, dtype=torch.float64)

    def empty(self) -> PrioritySampler:
        """An empty sampler with the same configuration."""
        return PrioritySampler(self.size, self.sampled, self.seed, self.uniform_scores)

    def offer(self, examples: Examples, score: Tensor, weight: Tensor | None = None) -> None:
        """Offer the next examples of the stream; `weight` is the number of examples that each represents already."""
        score = score.double().cpu().clamp(min=1e-300)
        weight = torch.ones_like(score) if weight is None else weight.double().cpu()
        self._total += float(weight.sum())
        if self.sampled:
            score = score * weight / uniform(examples.key, self.seed)
        self._keep_best(examples, score, weight)

    def _keep_best(self, rows: Examples, priority: Tensor, weight: Tensor) -> None:
        rows = rows if self._rows is None else concatenate([self._rows, rows])
        priority, weight = torch.cat([self._priority, priority]), torch.cat([self._weight, weight])
        size = self.size + 1  # one more than requested: the first rejected row determines the threshold
        best = torch.arange(len(priority))
        if len(best) > 2 * size:  # most rows cannot be among the best, and sorting them would take longer
            best = torch.nonzero(~(priority < priority.topk(size).values[-1]))[:, 0]  # undefined ones remain
        best = best[torch.argsort(priority[best], descending=True, stable=True)][:size]
        self._rows, self._priority, self._weight = rows.take(best), priority[best], weight[best]

    @property
    def threshold(self) -> float:
        """The highest priority of the rejected rows; zero if none was rejected."""
        return float(self._priority[self.size]) if len(self._priority) > self.size else 0.0

    @property
    def highest(self) -> float:
        """The highest priority of all."""
        return float(self._priority[0]) if len(self._priority) else 0.0

    def sums(self) -> Tensors:
        """The contents, by name."""
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
        """Merge the sample of the next shard of the stream."""
        if other._rows is not None:
            self._total += other._total
            self._keep_best(other._rows, other._priority, other._weight)

    def take(self) -> tuple[Examples, Tensor] | None:
        """The sampled examples and their weights, ordered by key; None if the stream was empty."""
        if self._rows is None or len(self._rows) == 0:
            return None
        n = min(self.size, len(self._rows))
        weight = self._weight[:n]
        if self.sampled and len(self._rows) > self.size:
            share = (self._priority[:n] * uniform(self._rows.key[:n], self.seed)) / self._priority[self.size]
            weight = weight / share.clamp(max=1)
            if self.uniform_scores:
                weight = weight * (self._total / weight.sum())  # the total is known, so only the selection is random
        order = torch.argsort(self._rows.key[:n].cpu())
        return self._rows.take(order), weight[order]
