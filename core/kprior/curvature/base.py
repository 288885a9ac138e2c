"""The interface of curvature backends, and the Jacobian rows that make up a Gauss-Newton matrix."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor

MAX_COPIED_SIZE = 1_000
"""Size up to which `torch.cholesky_solve` is used; it copies the factor, which takes ten times as long as solving."""
ROW_BYTES = 2**27
"""Memory for the Jacobian rows of one step."""


class Curvature(ABC):
    """A symmetric positive semi-definite (P, P) matrix, summed over examples."""

    kind: str

    @classmethod
    @abstractmethod
    def zeros(cls, predictor: Predictor) -> Self:
        """The curvature of no data."""

    @abstractmethod
    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        """Add sum_i weight_i J_i' L_i J_i at the weights w, in place."""

    def add_rows(self, predictor: Predictor, w: Tensor, rows: Examples, weight: Tensor | None = None) -> None:
        """Like `add`, with the targets, on which the curvature of a kinked loss depends."""
        self.add(predictor, w, rows.x, weight)

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the curvature of other examples, in place."""

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """G v: (P,) -> (P,)."""

    @abstractmethod
    def clip(self) -> None:
        """Set negative eigenvalues (or those of the factors) to zero, in place."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its contents, by name."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        """The inverse of `tensors`."""

    @abstractmethod
    def inverse(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that solves (G + diag(delta)) u = v for u: (P,) -> (P,).

        Blocks and Kronecker factors use the smallest positive delta for unpenalised weights, or for a whole layer. The
        result is only a preconditioner, so it affects the speed and not the solution.
        """

    def copy(self, predictor: Predictor) -> Self:
        """An independent copy."""
        return self.from_tensors({k: v.clone() for k, v in self.tensors().items()}, predictor)

    def dense(self, size: int) -> Tensor:
        """The full matrix, for small P and for tests."""
        some = next(iter(self.tensors().values()))
        eye = torch.eye(size, dtype=some.dtype, device=some.device)
        return torch.stack([self.product(e) for e in eye])


def ggn_rows(predictor: Predictor, w: Tensor, x: Tensor, y: Tensor | None = None) -> Tensor:
    """Rows whose Gram matrix is the GGN: (n * K, P), row (i, l) = sum_k root_i[k, l] J_i[k].

    A kinked loss needs the targets y (n, K).
    """
    jacobian, f = predictor.jacobian(w, x), predictor.outputs(w, x)
    root = predictor.family.hessian_root(f)
    if y is not None and predictor.family.kinked:
        root = torch.diag_embed(predictor.family.curvature(y.to(f), f).sqrt())
    return torch.einsum("nkl,nkp->nlp", root, jacobian).reshape(-1, jacobian.shape[-1])


def row_chunks(predictor: Predictor, n: int) -> range:
    """Starts of chunks whose Jacobian rows fit into ROW_BYTES."""
    size = predictor.size * predictor.family.outputs * (8 if predictor.linear else 4)
    return range(0, n, max(1, ROW_BYTES // size))


def per_row(weight: Tensor, rows: Tensor) -> Tensor:
    """Expand weights of examples to a column that matches the rows of `ggn_rows`."""
    return weight.repeat_interleave(len(rows) // len(weight))[:, None]


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a positive semi-definite matrix, with the smallest possible addition to its diagonal."""
    factor: Tensor
    scale = matrix.diagonal().mean().clamp(min=1e-30)
    for power in (None, -13, -11, -9, -7, -5):
        jitter = 0.0 if power is None else 10.0**power
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * scale * torch.eye(len(matrix)).to(matrix))
        if int(info) == 0:
            return factor
    raise ArithmeticError("A curvature matrix is not positive semi-definite.")


def solve_factored(factor: Tensor, v: Tensor) -> Tensor:
    """H^-1 v for the Cholesky factor of H: (P, P), (P,) -> (P,)."""
    if len(v) <= MAX_COPIED_SIZE:
        return torch.cholesky_solve(v[:, None], factor)[:, 0]
    half = torch.linalg.solve_triangular(factor, v[:, None], upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.T, half, upper=True)[:, 0]
    return solved
