"""Terms that only benchmarks use: soft labels with a temperature, mixed inputs, removed rows of a network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior import Cost, Data, Examples, Predictor
from core.kprior.data.examples import EncodedExamples
from core.kprior.objective.terms import Batch, Term
from core.kprior.passes.loss import BACKWARD_ROWS, Loss


class TemperedTerm(Term):
    """scale T^2 sum_i v_i l(t_i, f_i(w) / T), where the targets t_i are given at the temperature T (paper, Eq. 27)."""

    def __init__(
        self,
        predictor: Predictor,
        rows: Examples,
        targets: Tensor | None,
        weight: Tensor,
        scale: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(predictor, [rows], targets, weight)
        self.scale, self.temperature = scale, temperature

    def evaluate(self, w: Tensor, hessian: bool = False) -> Loss:
        if self.predictor.linear:  # f(w) / T = f(w / T)
            total = super().evaluate(w / self.temperature, hessian)
            total.gradient = self.scale * self.temperature * total.gradient
            total.value *= self.scale * self.temperature**2
            total.hessian = self.scale * total.hessian
            return total
        return evaluate_by_autograd(self, w)

    def loss(self, f: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        T = self.temperature
        return self.scale * T * T * super().loss(f / T, targets, weight)


class MixedTerm(TemperedTerm):
    """The same for inputs that are mixed anew for every minibatch and labelled by the old model."""

    def __init__(self, mixer: InputMixer, cost: Cost, *term: object) -> None:
        super().__init__(*term)  # type: ignore[arg-type]
        self.mixer, self.cost = mixer, cost

    def stands_for(self) -> int:
        """Number of examples that the mixed inputs represent."""
        assert self._weight is not None
        return max(1, round(float(self._weight.sum())))

    def minibatches(self, steps: int, size: int | None, generator: torch.Generator) -> Iterator[tuple[Batch, float]]:
        """`steps` batches of `size` mixed inputs."""
        n = self.rows()
        z, _, v = self.whole()
        for _ in range(steps):
            batch, factor = self.mixer.mix(z, v, size or n, self.temperature, generator)
            self.cost.forward_passes += len(batch[0])
            yield batch, factor


class RemovedTerm(Term):
    """sum_k c_k' f_k(w) over removed rows of a network, c_k = y_k - h*_k."""

    def __init__(self, predictor: Predictor, z: Tensor, coefficient: Tensor) -> None:
        super().__init__(predictor, [])
        self._cache, self.count = [[EncodedExamples(torch.arange(len(z)), z, coefficient, None)]], len(z)

    def evaluate(self, w: Tensor, hessian: bool = False) -> Loss:
        return evaluate_by_autograd(self, w)

    def loss(self, f: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return (f * targets).sum()


def evaluate_by_autograd(term: Term, w: Tensor) -> Loss:
    """Value and gradient of a term of a network."""
    total = Loss(term.predictor, w)
    for rows in term:
        at = w.detach().requires_grad_()
        for start in range(0, len(rows.x), BACKWARD_ROWS):
            some = slice(start, start + BACKWARD_ROWS)
            weight = None if rows.weight is None else rows.weight[some]
            value = term.loss(term.predictor.outputs_of_encoded(at, rows.x[some]), rows.y[some], weight)
            total.gradient = total.gradient + torch.autograd.grad(value, at)[0]
            total.value += float(value.detach())
        total.count += len(rows.x)
    return total


def input_root(predictor: Predictor, past: Data, removed: Tensor) -> Tensor | None:
    """L with L L' the covariance of the encoded inputs of the past without the removed keys; None without a past."""
    moment: Tensor | None = None
    for chunk in past:
        rows = chunk.take(~torch.isin(chunk.key.cpu(), removed))
        z, weight = predictor.encode(rows.x).flatten(1).double(), predictor.weigh(rows)
        phi = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        part = (phi if weight is None else phi * weight.double()[:, None]).T @ phi
        moment = part if moment is None else moment + part
    if moment is None:
        return None
    count = moment[-1, -1].clamp(min=1e-30)  # weights of rows may be less than one
    mean = moment[-1, :-1] / count
    # constant inputs leave small eigenvalues of either sign
    values, vectors = torch.linalg.eigh(moment[:-1, :-1] / count - mean[:, None] * mean)
    root: Tensor = vectors * values.clamp(min=0).sqrt()
    return root


@dataclass(frozen=True)
class InputMixer:
    """The old model, which labels mixed inputs."""

    predictor: Predictor
    w: Tensor
    input_root: Tensor | None = None
    """A root of the covariance of the inputs, if it is known."""

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
