"""L2 regularizers R(w) = 1/2 sum_j delta_j w_j^2 and the divergence between two of them.

One delta, a delta per parameter, an unpenalised bias: all are a vector of deltas, some of them zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .predictor import Predictor
from .spec import Regularizer


@dataclass(frozen=True)
class L2:
    """R(w) = 1/2 sum_j delta_j w_j^2 + b'w."""

    delta: Tensor
    """(P,), none negative."""
    linear: Tensor | None = None
    """(P,) b: the perturbation that certified removal asks for; else none."""

    def value(self, w: Tensor) -> Tensor:
        """R(w)."""
        value = 0.5 * (self.delta * w * w).sum()
        return value if self.linear is None else value + (self.linear * w).sum()

    def gradient(self, w: Tensor) -> Tensor:
        """eta = grad R(w), the dual parameter."""
        return self.delta * w if self.linear is None else self.delta * w + self.linear

    def conjugate(self, eta: Tensor) -> Tensor:
        """R*(eta) = sup_w <w, eta> - R(w): infinite where an unpenalised weight has a dual parameter."""
        eta = eta if self.linear is None else eta - self.linear
        free = self.delta == 0
        if bool((eta[free] != 0).any()):
            return torch.full((), torch.inf, dtype=eta.dtype, device=eta.device)
        return 0.5 * (eta[~free] ** 2 / self.delta[~free]).sum()


def bregman(new: L2, old: L2, w: Tensor, w_star: Tensor) -> Tensor:
    """B_GR(w || w*) = G(w) + R*(eta*) - <w, eta*>, eta* = grad R(w*)   (paper, Eq. 20).

    For one delta each it is 1/2 (gamma |w|^2 + delta |w*|^2 - 2 delta <w, w*>), and for G = R the
    Bregman divergence delta/2 |w - w*|^2 of Eq. 8.
    """
    eta = old.gradient(w_star)
    return new.value(w) + old.conjugate(eta) - (w * eta).sum()


def regularizer_of(spec: Regularizer, predictor: Predictor) -> L2:
    """The regularizer of a spec, for a model.

    Parameters
    ----------
    spec
        {"kind": "l2", "delta": number or list, "penalize_bias": bool}. A list has a delta for each parameter, biases
        included; with one number biases are penalised only if the spec says so.

    Raises
    ------
    ValueError
        If the kind is another, or delta is negative, not finite, or not as many as the parameters.
    """
    if spec.get("kind", "l2") != "l2":
        raise ValueError(f"unknown regularizer {spec.get('kind')!r}; known: l2")
    try:
        delta = torch.as_tensor(spec.get("delta", 1.0), dtype=predictor.dtype, device=predictor.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"delta must be a number or a list of numbers, not {spec.get('delta')!r}") from error
    if delta.ndim > 1 or (delta.ndim == 1 and delta.shape[0] != predictor.size):
        raise ValueError(f"delta must be one number or {predictor.size} of them, one per parameter")
    if not bool(torch.isfinite(delta).all()) or bool((delta < 0).any()):
        raise ValueError("delta must be finite and not negative")
    if delta.ndim == 1:
        return L2(delta.clone())  # one for each parameter: the biases' are as they stand
    delta = delta.expand(predictor.size).clone()
    if not spec.get("penalize_bias", False):
        delta[predictor.bias()] = 0
    return L2(delta)
