"""The generalised Gauss-Newton matrix of past data, G = sum_i v_i J_i' L_i J_i with L = h'(f*).

A version carries G over all its data (paper, Eq. 12, with nothing in memory); what a memory leaves out,
Q = G - sum_M v_i J_i' L_i J_i, is derived when an objective is built. Both are sums, so they are updated, never
recomputed, when examples come and go. Four backends share one interface and one contract suite:

    full        the matrix itself: exact; GLMs and last layers
    lowrank     the leading `rank` directions of a running singular value decomposition; never more than G
    kronecker   one Kronecker product per layer (KFAC; Martens & Grosse 2015)
    diagonal    the diagonal

A weight is negative where examples are taken away; `clip` restores positive semi-definiteness after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from core.kprior.architectures import Linear
from core.kprior.predictor import Predictor

FULL_LIMIT = 3_000
"""Parameters up to which the whole matrix is kept (72 MB, a Cholesky factor in about a second)."""
LOWRANK_LIMIT = 200_000
RANK = 200
ROW_BYTES = 2**27
"""Memory for the Jacobian rows of one step."""


class Curvature(ABC):
    """A symmetric positive semi-definite (P, P) matrix that examples are added to."""

    kind: str

    @classmethod
    @abstractmethod
    def zeros(cls, predictor: Predictor) -> Self:
        """The curvature of no data."""

    @abstractmethod
    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        """Add sum_i weight_i J_i' L_i J_i at the weights w, in place."""

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """G v: (P,) -> (P,)."""

    @abstractmethod
    def clip(self) -> None:
        """Set negative eigenvalues (or those of the factors) to zero, in place."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that it is made of, by name."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        """The inverse of `tensors`."""

    def leverage(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that gives r' (G + diag(delta))^-1 r for each row r: (n, P) -> (n,)."""
        raise ValueError(f"leverage is not known for {self.kind} curvature; select memory another way")

    def copy(self, predictor: Predictor) -> Self:
        """An independent copy."""
        return self.from_tensors({k: v.clone() for k, v in self.tensors().items()}, predictor)

    def dense(self, size: int) -> Tensor:
        """The matrix itself; for small P and tests."""
        some = next(iter(self.tensors().values()))
        eye = torch.eye(size, dtype=some.dtype, device=some.device)
        return torch.stack([self.product(e) for e in eye])


def ggn_rows(predictor: Predictor, w: Tensor, x: Tensor) -> Tensor:
    """Rows whose Gram matrix is the GGN: (n * K, P), row (i, l) = sum_k root_i[k, l] J_i[k]."""
    jacobian = predictor.jacobian(w, x)
    root = predictor.family.hessian_root(predictor.outputs(w, x))
    return torch.einsum("nkl,nkp->nlp", root, jacobian).reshape(-1, jacobian.shape[-1])


def row_chunks(predictor: Predictor, n: int) -> range:
    """Starts of chunks whose Jacobian rows fit into ROW_BYTES."""
    size = predictor.size * predictor.family.outputs * (8 if predictor.linear else 4)
    return range(0, n, max(1, ROW_BYTES // size))


class Full(Curvature):
    """The whole matrix."""

    kind = "full"

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        P = predictor.size
        return cls(torch.zeros(P, P, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        if predictor.linear:
            phi = predictor.features(x)
            self.matrix += glm_hessian(phi, predictor.family.hessian(phi @ predictor.unflatten(w)["weight"].T), weight)
            return
        step = row_chunks(predictor, len(x)).step
        for i in range(0, len(x), step):
            rows = ggn_rows(predictor, w, x[i : i + step])
            scaled = rows if weight is None else rows * per_row(weight[i : i + step], rows)
            self.matrix += scaled.T @ rows

    def product(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def clip(self) -> None:
        values, vectors = torch.linalg.eigh(self.matrix)
        if bool(values[0] < 0):
            self.matrix = (vectors * values.clamp(min=0)) @ vectors.T

    def tensors(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["matrix"])

    def leverage(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        factor = cholesky(self.matrix + torch.diag(delta))
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).T
        return lambda rows: ((rows @ inverse) ** 2).sum(1)

    def dense(self, size: int) -> Tensor:
        return self.matrix


def cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a positive semi-definite matrix, with as little added to its diagonal as it takes."""
    scale = matrix.diagonal().mean().clamp(min=1e-30)
    for power in (None, -13, -11, -9, -7, -5):
        jitter = 0.0 if power is None else 10.0**power
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * scale * torch.eye(len(matrix)).to(matrix))
        if int(info) == 0:
            return factor
    raise ArithmeticError("a curvature matrix is not positive semi-definite")


def glm_hessian(phi: Tensor, hessian: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum_i v_i L_i (x) phi_i phi_i' for a GLM: (n, D), (n, K, K) -> (K D, K D)."""
    n, K, _ = hessian.shape
    D = phi.shape[1]
    if weight is not None:
        hessian = hessian * weight[:, None, None]
    out = torch.empty(K, D, K, D, dtype=phi.dtype, device=phi.device)
    for k in range(K):
        for j in range(k + 1):
            block = (phi * hessian[:, k, j, None]).T @ phi
            out[k, :, j] = block
            out[j, :, k] = block  # phi' diag phi is symmetric, so the mirrored block is the same
    return out.reshape(K * D, K * D)


def per_row(weight: Tensor, rows: Tensor) -> Tensor:
    """A weight per example as a column that fits the rows of `ggn_rows`."""
    return weight.repeat_interleave(len(rows) // len(weight))[:, None]


class LowRank(Curvature):
    """F'F with F of `rank` rows: leading directions of a running decomposition, truncated after each step.

    Truncation only takes away, so (while nothing is removed) F'F never exceeds G.
    """

    kind = "lowrank"

    def __init__(self, factor: Tensor, rank: int = RANK) -> None:
        self.factor = factor
        self.rank = rank

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        return cls(torch.zeros(0, predictor.size, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        step = min(row_chunks(predictor, len(x)).step, max(1, 2 * self.rank // predictor.family.outputs))
        for i in range(0, len(x), step):
            rows = ggn_rows(predictor, w, x[i : i + step])
            if weight is None:
                self._merge(rows, None)
            else:
                scale = per_row(weight[i : i + step].to(rows.dtype), rows)
                self._merge(rows * scale.abs().sqrt(), scale[:, 0].sign())

    def _merge(self, rows: Tensor, sign: Tensor | None) -> None:
        """F'F + rows' diag(sign) rows, by the eigenvalues of its small twin in the span of the rows."""
        stack = torch.cat([self.factor, rows])
        # float32 Gram matrices lose half the digits; the stack is short, so double costs little
        gram = (stack @ stack.T).double()
        values, vectors = torch.linalg.eigh(gram)
        keep = values > values[-1].clamp(min=0) * 1e-12
        values, vectors = values[keep], vectors[:, keep]
        if sign is None:
            new_values, basis = values, vectors / values.sqrt()
        else:
            signs = torch.cat([torch.ones(len(self.factor), device=sign.device), sign]).double()
            half = vectors * values.sqrt()
            new_values, inner = torch.linalg.eigh(half.T @ (signs[:, None] * half))
            basis = (vectors / values.sqrt()) @ inner
        top = torch.argsort(new_values, descending=True)[: self.rank]
        top = top[new_values[top] > 0]
        coefficients = basis[:, top] * new_values[top].sqrt()
        self.factor = coefficients.T.to(stack.dtype) @ stack

    def product(self, v: Tensor) -> Tensor:
        return self.factor.T @ (self.factor @ v)

    def clip(self) -> None:
        """Nothing to do: F'F has no negative eigenvalues."""

    def leverage(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        # one ridge for all parameters makes Woodbury's formula a small matrix, also where a bias has none
        ridge = delta[delta > 0].min() if bool((delta > 0).any()) else delta.new_tensor(1.0)
        inner = self.factor @ self.factor.T
        factor = cholesky(inner + ridge * torch.eye(len(inner)).to(inner))

        def of(rows: Tensor) -> Tensor:
            explained = torch.linalg.solve_triangular(factor, self.factor @ rows.T, upper=False)
            return ((rows**2).sum(1) - (explained**2).sum(0)).clamp(min=0) / ridge

        return of

    def tensors(self) -> dict[str, Tensor]:
        return {"factor": self.factor}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["factor"])


class Diagonal(Curvature):
    """The diagonal of G."""

    kind = "diagonal"

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        return cls(torch.zeros(predictor.size, dtype=predictor.dtype, device=predictor.device))

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        step = row_chunks(predictor, len(x)).step
        for i in range(0, len(x), step):
            squares = ggn_rows(predictor, w, x[i : i + step]) ** 2
            self.diagonal += (squares if weight is None else squares * per_row(weight[i : i + step], squares)).sum(0)

    def product(self, v: Tensor) -> Tensor:
        return self.diagonal * v

    def clip(self) -> None:
        self.diagonal.clamp_(min=0)

    def leverage(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        inverse = 1 / (self.diagonal + delta).clamp(min=1e-30)
        return lambda rows: rows**2 @ inverse

    def tensors(self) -> dict[str, Tensor]:
        return {"diagonal": self.diagonal}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        return cls(tensors["diagonal"])


class Kronecker(Curvature):
    """One A (x) B / n per layer: A = sum a a' over a layer's inputs, B = sum b b' over what flows back to it.

    Exact GGN factors (K backward passes, no sampling). For convolutions A sums and B averages over positions.
    """

    kind = "kronecker"

    def __init__(self, inputs: dict[str, Tensor], outputs: dict[str, Tensor], count: Tensor, predictor: Predictor):
        self.inputs, self.outputs, self.count = inputs, outputs, count
        self._unflatten = predictor.unflatten
        self._order = list(predictor.unflatten(torch.zeros(predictor.size)))

    @classmethod
    def supports(cls, predictor: Predictor) -> bool:
        """Whether every weight sits in a layer that has Kronecker factors."""
        kinds = (nn.Linear, nn.Conv2d, Linear)
        return all(isinstance(m, kinds) and getattr(m, "groups", 1) == 1 for m in predictor.layers().values())

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        if not cls.supports(predictor):
            raise ValueError("kronecker curvature knows fully connected and convolutional layers only")
        options = {"dtype": predictor.dtype, "device": predictor.device}
        inputs, outputs = {}, {}
        for name, layer in predictor.layers().items():
            weight = layer.weight
            assert isinstance(weight, Tensor)
            has_bias = getattr(layer, "bias", None) is not None
            a = weight[0].numel() + has_bias
            inputs[name] = torch.zeros(a, a, **options)  # type: ignore[call-overload]
            outputs[name] = torch.zeros(len(weight), len(weight), **options)  # type: ignore[call-overload]
        return cls(inputs, outputs, torch.zeros((), **options), predictor)  # type: ignore[call-overload]

    def add(self, predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> None:
        weight = torch.ones(len(x), device=predictor.device) if weight is None else weight
        weight = weight.to(predictor.dtype)
        self.count += weight.sum()
        if predictor.linear:
            phi = predictor.features(x)
            self.inputs[""] += (phi * weight[:, None]).T @ phi
            hessian = predictor.family.hessian(phi @ predictor.unflatten(w)["weight"].T)
            self.outputs[""] += (hessian * weight[:, None, None]).sum(0)
            return
        seen: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        hooks = [
            layer.register_forward_hook(
                lambda _m, a, out, name=name: (seen.update({name: a[0]}), made.update({name: out}))[0]
            )
            for name, layer in predictor.layers().items()
        ]
        try:
            with torch.enable_grad():
                f = predictor.outputs(w.detach().requires_grad_(), x)
                root = predictor.family.hessian_root(f.detach())
                flows = [
                    torch.autograd.grad(f, list(made.values()), root[:, :, k], retain_graph=True)
                    for k in range(f.shape[1])
                ]
        finally:
            for hook in hooks:
                hook.remove()
        for index, (name, layer) in enumerate(predictor.layers().items()):
            a, positions = layer_inputs(layer, seen[name].detach())
            v = weight.repeat_interleave(positions)
            self.inputs[name] += (a * v[:, None]).T @ a
            for flow in flows:
                b = flow[index].detach().flatten(2).transpose(1, 2) if flow[index].ndim == 4 else flow[index]
                b = b.reshape(-1, self.outputs[name].shape[0])
                self.outputs[name] += (b * v[:, None]).T @ b / positions

    def product(self, v: Tensor) -> Tensor:
        if self.count <= 0:
            return torch.zeros_like(v)
        parts = self._unflatten(v)
        out: dict[str, Tensor] = {}
        for name, a in self.inputs.items():
            prefix = f"{name}." if name else ""
            weight = parts[f"{prefix}weight"]
            matrix = weight.flatten(1)
            if f"{prefix}bias" in parts:
                matrix = torch.cat([matrix, parts[f"{prefix}bias"][:, None]], 1)
            result = self.outputs[name] @ matrix @ a / self.count
            out[f"{prefix}weight"] = result[:, : weight[0].numel()].reshape(-1)
            if f"{prefix}bias" in parts:
                out[f"{prefix}bias"] = result[:, -1]
        return torch.cat([out[name] for name in self._order])

    def clip(self) -> None:
        for factors in (self.inputs, self.outputs):
            for name, matrix in factors.items():
                values, vectors = torch.linalg.eigh(matrix.double())
                factors[name] = ((vectors * values.clamp(min=0)) @ vectors.T).to(matrix.dtype)
        self.count.clamp_(min=0)

    def tensors(self) -> dict[str, Tensor]:
        return (
            {f"inputs.{k}": v for k, v in self.inputs.items()}
            | {f"outputs.{k}": v for k, v in self.outputs.items()}
            | {"count": self.count}
        )

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], predictor: Predictor) -> Self:
        split = {
            side: {k.removeprefix(f"{side}."): v for k, v in tensors.items() if k.startswith(f"{side}.")}
            for side in ("inputs", "outputs")
        }
        return cls(split["inputs"], split["outputs"], tensors["count"], predictor)


def layer_inputs(layer: nn.Module, a: Tensor) -> tuple[Tensor, int]:
    """A layer's inputs as rows (with 1 for the bias), and how many rows one example has."""
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        rows, positions = patches.transpose(1, 2).reshape(-1, patches.shape[1]), patches.shape[2]
    else:
        rows, positions = a, 1
    if getattr(layer, "bias", None) is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    return rows, positions


BACKENDS: dict[str, type[Curvature]] = {c.kind: c for c in (Full, LowRank, Kronecker, Diagonal)}


def curvature_for(predictor: Predictor, kind: str = "auto") -> Curvature:
    """An empty curvature: of the named backend, or of the one that suits the number of parameters."""
    if kind == "auto":
        if predictor.size <= FULL_LIMIT:
            kind = "full"
        elif predictor.size <= LOWRANK_LIMIT:
            kind = "lowrank"
        else:
            kind = "kronecker" if Kronecker.supports(predictor) else "diagonal"
    if kind not in BACKENDS:
        raise ValueError(f"unknown curvature {kind!r}; known: auto, {', '.join(BACKENDS)}")
    return BACKENDS[kind].zeros(predictor)
