"""The divergence of two regularizers, of which adaptations need only the gradient."""

import torch
from torch import Tensor

from core.kprior.model.regularizers import L2


def conjugate(regularizer: L2, eta: Tensor) -> Tensor:
    """R*(eta) = sup_w <w, eta> - R(w): infinite if an unpenalised weight has a dual parameter."""
    eta = eta if regularizer.linear is None else eta - regularizer.linear
    free = regularizer.delta == 0
    if bool((eta[free] != 0).any()):
        return torch.full((), torch.inf, dtype=eta.dtype, device=eta.device)
    value = 0.5 * (eta[~free] ** 2 / regularizer.delta[~free]).sum()
    return value if regularizer.toward is None else value + (regularizer.toward * eta).sum()


def bregman(new: L2, old: L2, w: Tensor, w_star: Tensor) -> Tensor:
    """B_GR(w || w*) = G(w) + R*(eta*) - <w, eta*>, eta* = grad R(w*)   (paper, Eq. 20).

    For one delta each it is 1/2 (gamma |w|^2 + delta |w*|^2 - 2 delta <w, w*>), and for G = R the
    Bregman divergence delta/2 |w - w*|^2 of Eq. 8.
    """
    eta = old.gradient(w_star)
    return new.value(w) + conjugate(old, eta) - (w * eta).sum()
