"""Certified removal of data from L2-regularised GLMs (Guo, Goldstein, Hannun & van der Maaten, 2020).

Training minimises L(w) + b'w with a secret random b ~ N(0, sigma^2 I). A model w with |grad L(w) + b| <= r on the
retained data is indistinguishable from a retrain on them, up to (epsilon, delta), as long as

    r <= sigma epsilon / sqrt(2 log(1.5 / delta))          (their Theorem 3)

The pass of a certificate measures the residual r of all removals so far, so nothing has to be accumulated.
"""

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.model.predictor import Predictor


@dataclass(frozen=True)
class CertifiedRemoval:
    """The guarantee (epsilon, delta), and the standard deviation sigma of the noise that it requires.

    Examples
    --------
    >>> from core.kprior import CertifiedRemoval
    >>> round(CertifiedRemoval(epsilon=1.0, delta=1e-4, sigma=10.0).allowed, 3)
    2.28
    >>> round(CertifiedRemoval(epsilon=0.5, delta=1e-4, sigma=10.0).allowed, 3)  # half the budget, half the residual
    1.14
    """

    epsilon: float
    delta: float
    sigma: float

    @property
    def allowed(self) -> float:
        """The largest residual gradient for which the guarantee holds."""
        return self.sigma * self.epsilon / math.sqrt(2 * math.log(1.5 / self.delta))

    def draw_noise(self, predictor: Predictor) -> Tensor:
        """Draw b (P,). A known seed would reveal it, so it comes from the system. Raises ValueError for networks."""
        if not predictor.linear:
            raise ValueError("certified removal exists for linear models only")
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        noise = torch.randn(predictor.size, generator=generator, dtype=predictor.dtype)
        return (self.sigma * noise).to(predictor.device)
