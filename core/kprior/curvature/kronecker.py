"""Kronecker factors per layer (KFAC, Martens & Grosse 2015), for large networks."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from core.kprior.curvature.base import Curvature
from core.kprior.model.architectures import Glm
from core.kprior.model.predictor import Predictor


class Kronecker(Curvature):
    """One A (x) B / n per layer: A = sum a a' over a layer's inputs, B = sum b b' over the gradients of its outputs.

    Exact GGN factors (K backward passes, no sampling). For convolutions A sums and B averages over positions.
    """

    kind = "kronecker"

    def __init__(self, inputs: dict[str, Tensor], outputs: dict[str, Tensor], count: Tensor, predictor: Predictor):
        self.inputs, self.outputs, self.count = inputs, outputs, count
        self._unflatten = predictor.unflatten
        self._order = list(predictor.unflatten(torch.zeros(predictor.size)))

    @classmethod
    def supports(cls, predictor: Predictor) -> bool:
        """Whether all weights belong to layers with Kronecker factors."""
        kinds = (nn.Linear, nn.Conv2d, Glm)
        return all(isinstance(m, kinds) and getattr(m, "groups", 1) == 1 for m in predictor.layers().values())

    @classmethod
    def zeros(cls, predictor: Predictor) -> Self:
        if not cls.supports(predictor):
            raise ValueError("Kronecker curvature supports only fully connected and convolutional layers.")
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
        if predictor.linear:
            self.add_features(predictor, w, predictor.features(x), weight)
            return
        self.count += weight.sum()
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
                    dict(
                        zip(
                            made,
                            torch.autograd.grad(f, list(made.values()), root[:, :, k], retain_graph=True),
                            strict=True,
                        )
                    )
                    for k in range(f.shape[1])
                ]
        finally:
            for hook in hooks:
                hook.remove()
        for name, layer in predictor.layers().items():
            a, positions = layer_inputs(layer, seen[name].detach())
            v = weight.repeat_interleave(positions)
            self.inputs[name] += (a * v[:, None]).T @ a
            for flow in flows:
                b = flow[name].detach().flatten(2).transpose(1, 2) if flow[name].ndim == 4 else flow[name]
                b = b.reshape(-1, self.outputs[name].shape[0])
                self.outputs[name] += (b * v[:, None]).T @ b / positions

    def add_features(self, predictor: Predictor, w: Tensor, phi: Tensor, weight: Tensor | float) -> None:
        """Add rows of a GLM by their features."""
        v = torch.full((len(phi),), weight, dtype=phi.dtype, device=phi.device) if isinstance(weight, float) else weight
        self.count += v.sum()
        self.inputs[""] += (phi * v[:, None]).T @ phi
        self.outputs[""] += predictor.family.summed_hessian(phi @ predictor.unflatten(w)["weight"].T, v)

    def merge(self, other: Self) -> None:
        for mine, theirs in ((self.inputs, other.inputs), (self.outputs, other.outputs)):
            for name, matrix in theirs.items():
                mine[name] += matrix
        self.count += other.count

    def product(self, v: Tensor) -> Tensor:
        if self.count <= 0:
            return torch.zeros_like(v)
        return self._by_layer(v, lambda name, matrix: self.outputs[name] @ matrix @ self.inputs[name] / self.count)

    def _by_layer(self, v: Tensor, change: Callable[[str, Tensor], Tensor]) -> Tensor:
        """Apply `change` to the weights of each layer, as a matrix whose last column is the bias."""
        layers = self._unflatten(v)
        out: dict[str, Tensor] = {}
        for name in self.inputs:
            prefix = f"{name}." if name else ""
            weight = layers[f"{prefix}weight"]
            matrix = weight.flatten(1)
            if f"{prefix}bias" in layers:
                matrix = torch.cat([matrix, layers[f"{prefix}bias"][:, None]], 1)
            result = change(name, matrix)
            out[f"{prefix}weight"] = result[:, : weight[0].numel()].reshape(-1)
            if f"{prefix}bias" in layers:
                out[f"{prefix}bias"] = result[:, -1]
        return torch.cat([out[name] for name in self._order])

    def inverse(self, delta: Tensor) -> Callable[[Tensor], Tensor]:
        ridge = float(delta[delta > 0].min()) if bool((delta > 0).any()) else 1e-3
        bases = {}
        for name, a in self.inputs.items():
            left, U = torch.linalg.eigh(self.outputs[name].double())
            right, V = torch.linalg.eigh(a.double())
            values = left.clamp(min=0)[:, None] * right.clamp(min=0) / self.count.double().clamp(min=1e-30)
            bases[name] = U.to(a), V.to(a), (values + ridge).to(a)

        def solve(v: Tensor) -> Tensor:
            def one(name: str, matrix: Tensor) -> Tensor:
                U, V, values = bases[name]
                out: Tensor = U @ ((U.T @ matrix @ V) / values) @ V.T
                return out

            return self._by_layer(v.to(self.count), one).to(v)

        return solve

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
    """A layer's inputs as rows (with 1 for the bias), and the number of rows per example."""
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
        rows, positions = patches.transpose(1, 2).reshape(-1, patches.shape[1]), patches.shape[2]
    else:
        rows, positions = a, 1
    if getattr(layer, "bias", None) is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    return rows, positions
