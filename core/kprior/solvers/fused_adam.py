"""Adam's steps for one tensor, by torch's fused kernel.

`torch.optim.Adam` takes the same steps, but its constructor loads torch's compiler, which takes a second in each
process.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam as take_step

EPSILON = 1e-8


class FusedAdam:
    """Minimises a function of the weights w, whose gradient is in `w.grad`."""

    def __init__(self, w: Tensor, rate: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.w, self.rate, self.betas = w, rate, betas
        self.first, self.second = torch.zeros_like(w.detach()), torch.zeros_like(w.detach())
        """Running means of gradients and of squared gradients."""
        self.steps = torch.zeros((), dtype=torch.float32, device=w.device)
        """Number of steps so far."""

    def step(self) -> None:
        """Take a step, unless there is no gradient."""
        if self.w.grad is None:
            return
        with torch.no_grad():
            take_step(
                [self.w],
                [self.w.grad],
                [self.first],
                [self.second],
                [],
                [self.steps],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=self.rate,
                weight_decay=0.0,
                eps=EPSILON,
                maximize=False,
            )
