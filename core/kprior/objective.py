"""One objective for every task: soft-label losses plus a quadratic in the weights.

    K(w) = sum_terms sum_i v_i l(t_i, f_i(w)) + sum_k c_k' f_k(w)
         + 1/2 (w - w*)' Q (w - w*) + 1/2 sum_j delta_j w_j^2 + b' w

Full retrains, replay, weight priors, distillation and K-priors differ only in what they put in here, and so all run
on the same solvers. `problem.py` says which term of the paper each part is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.curvature import Curvature, Full, glm_hessian
from core.kprior.examples import Data, rereadable
from core.kprior.predictor import Predictor

CACHE_BYTES = 2**28
"""Encoded inputs up to this size are kept between passes of one solve; beyond, every pass encodes anew."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Encoded inputs (GLM: features), targets, weights."""


class Term:
    """sum_i v_i l(t_i, f_i(w)) over rows that are read again in every pass."""

    def __init__(
        self,
        predictor: Predictor,
        data: Data,
        targets: Tensor | None = None,
        weight: Tensor | None = None,
        past: bool = False,
        scale: float = 1.0,
        temperature: float = 1.0,
        teacher: Teacher | None = None,
    ) -> None:
        """`targets` and `weight`, if given, follow the order of `data` and replace its labels and ones.

        With a temperature T both sides are divided by it and the loss is multiplied by T^2 (paper, Eq. 27): targets
        are then expected at that temperature. A `teacher` labels mixed inputs afresh in every minibatch.
        """
        self.predictor, self._data, self._targets, self._weight = predictor, rereadable(data), targets, weight
        self.past, self.scale, self.temperature, self.teacher = past, scale, temperature, teacher
        self._cache: list[Batch] | None = None
        self.count: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        if self._cache is not None:
            yield from self._cache
            return
        kept: list[Batch] | None = []
        total, start = 0, 0
        for chunk in self._data:
            n = len(chunk)
            if n == 0:
                continue
            if self.count is None:
                self.predictor.check(chunk)
            z = self.predictor.features(chunk.x) if self.predictor.linear else self.predictor.encode(chunk.x)
            targets = chunk.y if self._targets is None else self._targets[start : start + n]
            weight = None if self._weight is None else self._weight[start : start + n].to(z)
            start += n
            batch = (z, targets.to(z), weight)
            total += z.numel() * z.element_size()
            if total > CACHE_BYTES and self.teacher is None:
                kept = None
            if kept is not None:
                kept.append(batch)
            yield batch
        self._cache, self.count = kept, start

    @property
    def cached(self) -> bool:
        """Whether the rows are kept between passes."""
        return self._cache is not None

    def whole(self) -> Batch:
        """All cached rows as one batch."""
        assert self._cache is not None
        if len(self._cache) > 1:
            self._cache = [join(self._cache)]
        return self._cache[0]

    def stands_for(self) -> int:
        """How many examples an epoch of this term has: mixed inputs are as many as the past they stand for."""
        if self.teacher is not None and self._weight is not None:
            return max(1, round(float(self._weight.sum())))
        return self.rows()

    def rows(self) -> int:
        """How many rows there are; a pass over the data if none was made yet."""
        if self.count is None:
            for _ in self:
                pass
        assert self.count is not None
        return self.count

    def loss(self, f: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The term's value on some of its rows, given their outputs."""
        T = self.temperature
        loss = self.predictor.family.loss(targets, f / T) * (T * T)
        return self.scale * (loss if weight is None else loss * weight).sum()

    def minibatches(self, steps: int, size: int | None, generator: torch.Generator) -> Iterator[tuple[Batch, float]]:
        """`steps` batches that cover the rows once, each with the factor that makes its sum unbiased.

        Mixed inputs are new in every step, however few rows they are mixed from: of them each batch has `size`.
        """
        n = self.rows()
        if self.cached:
            z, targets, v = self.whole()
            if self.teacher is not None:
                for _ in range(steps):
                    yield self.teacher.mix(z, v, size or n, self.temperature, generator)
                return
            order = torch.randperm(n, generator=generator)
            for part in order.tensor_split(steps) if steps <= n else (order[i % n, None] for i in range(steps)):
                yield (z[part], targets[part], None if v is None else v[part]), n / len(part)
            return
        # streamed: shuffled within chunks only, and cut so that every row is in one of the steps
        ends = [round(n * (i + 1) / steps) for i in range(steps)]
        held: list[Batch] = []
        have, read, step = 0, 0, 0
        for z, targets, v in self:
            order = torch.randperm(len(z), generator=generator)
            while len(order):
                part, order = order[: ends[step] - read], order[ends[step] - read :]
                held.append((z[part], targets[part], None if v is None else v[part]))
                have, read = have + len(part), read + len(part)
                if read == ends[step]:
                    yield join(held), n / have
                    held, have, step = [], 0, step + 1


def join(batches: list[Batch]) -> Batch:
    """Several batches as one."""
    weights = [b[2] for b in batches if b[2] is not None]
    return (
        torch.cat([b[0] for b in batches]),
        torch.cat([b[1] for b in batches]),
        torch.cat(weights) if weights else None,
    )


@dataclass(frozen=True)
class Teacher:
    """The old model, kept during a job so that it can be asked anywhere."""

    predictor: Predictor
    w: Tensor
    input_root: Tensor | None = None
    """A root of the inputs' covariance, where it is known."""

    def mix(
        self, pool: Tensor, weight: Tensor | None, size: int, temperature: float, generator: torch.Generator
    ) -> tuple[Batch, float]:
        """`size` inputs x = a u_i + (1 - a) u_j + noise, a uniform, i and j drawn by weight, old labels."""
        odds = torch.ones(len(pool)) if weight is None else weight.cpu()
        i, j = torch.multinomial(odds, 2 * size, replacement=True, generator=generator).view(2, size)
        a = torch.rand(size, generator=generator).to(pool).reshape(-1, *[1] * (pool.ndim - 1))
        mixed = a * pool[i] + (1 - a) * pool[j]
        if self.input_root is not None:
            noise = torch.randn(size, len(self.input_root), generator=generator).to(pool)
            mixed = mixed + (noise @ self.input_root.T.to(pool) * 3**-0.5).view_as(mixed)
        with torch.no_grad():
            f = self.predictor.outputs_of_encoded(self.w, mixed.to(self.w)).to(mixed)
        targets = self.predictor.family.mean(f / temperature)
        return (mixed, targets, None), float(odds.sum()) / size


@dataclass
class Objective:
    """K(w), its gradient and, for GLMs, its Hessian."""

    predictor: Predictor
    delta: Tensor
    """(P,) of the new regularizer G."""
    linear: Tensor
    """(P,) b."""
    terms: list[Term] = field(default_factory=list)
    released: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Removed examples of a network: encoded inputs and the coefficients c_k = y_k - h*_k of their outputs."""
    curvature: Curvature | None = None
    centre: Tensor | None = None
    """Q and w*."""

    def smooth_part(self, w: Tensor) -> Tensor:
        """All that is a function of the weights alone; differentiable."""
        value = 0.5 * (self.delta * w * w).sum() + (self.linear * w).sum()
        if self.curvature is not None and self.centre is not None:
            step = w - self.centre
            value = value + 0.5 * (step * self.curvature.product(step)).sum()
        return value

    def evaluate(self, w: Tensor, cost: Cost, hessian: bool = False) -> tuple[float, Tensor, Tensor | None]:
        """Value, gradient and (GLM, on demand) Hessian in one pass over the terms."""
        if self.predictor.linear:
            return self._evaluate_glm(w, cost, hessian)
        w = w.detach().requires_grad_()
        value = self.smooth_part(w)
        gradient = torch.autograd.grad(value, w)[0]
        total = float(value.detach())
        for term in self.terms:
            for z, targets, weight in term:
                loss = term.loss(self.predictor.outputs_of_encoded(w, z), targets, weight)
                gradient = gradient + torch.autograd.grad(loss, w)[0]
                total += float(loss.detach())
                cost.backward_passes += len(z)
            cost.data_passes += term.past
        for z, coefficient in self.released:
            loss = (self.predictor.outputs_of_encoded(w, z) * coefficient).sum()
            gradient = gradient + torch.autograd.grad(loss, w)[0]
            total += float(loss.detach())
            cost.backward_passes += len(z)
        return total, gradient.detach(), None

    def _evaluate_glm(self, w: Tensor, cost: Cost, hessian: bool) -> tuple[float, Tensor, Tensor | None]:
        family = self.predictor.family
        value = float(self.smooth_part(w))
        gradient = self.delta * w + self.linear
        H = torch.diag(self.delta) if hessian else None
        if self.curvature is not None and self.centre is not None:
            gradient = gradient + self.curvature.product(w - self.centre)
            if H is not None:
                assert isinstance(self.curvature, Full)
                H = H + self.curvature.matrix
        W = w.view(family.outputs, -1)
        for term in self.terms:
            T = term.temperature
            for phi, targets, weight in term:
                f = phi @ W.T
                value += float(term.loss(f, targets, weight))
                residual = (family.mean(f / T) - targets) * (T * term.scale)
                if weight is not None:
                    residual = residual * weight[:, None]
                gradient = gradient + (residual.T @ phi).reshape(-1)
                if H is not None:
                    v = None if weight is None else weight * term.scale
                    block = glm_hessian(phi, family, f / T, v)
                    H += block if weight is not None else block * term.scale
                cost.backward_passes += len(phi)
            cost.data_passes += term.past
        return value, gradient, H
