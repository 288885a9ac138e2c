"""The Hessian of a GLM estimated from a random sample of its rows: good enough for a step, but not for a bound."""

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.curvature import glm_hessian
from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples
from core.kprior.data.keyed_random import uniform
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator


class SampledHessian(ModelAccumulator):
    """An estimate of sum_i phi_i h'(f_i) phi_i' at the weights w; every process samples the same rows."""

    kind = "sampled-hessian"
    options: ClassVar[tuple[str, ...]] = ("share", "seed")

    def __init__(self, predictor: Predictor, w: Tensor, share: float, seed: int = 0) -> None:
        super().__init__(predictor, w)
        self.share, self.seed = share, seed
        self.hessian = torch.zeros(predictor.size, predictor.size, dtype=w.dtype, device=w.device)
        """(P, P)."""
        self.work = share * predictor.size**2 / 2

    def add(self, chunk: Examples) -> None:
        some = chunk.take(torch.nonzero(uniform(chunk.key, self.seed) <= self.share)[:, 0])
        phi = self.predictor.features(some.x)
        f = phi @ self.w.view(self.predictor.family.outputs, -1).T
        weight = self.predictor.weigh(some)
        self.hessian += glm_hessian(phi, self.predictor.family, f, weight, some.y.to(f)) / self.share

    def sums(self) -> Tensors:
        return {"hessian": self.hessian}

    def merge(self, sums: Tensors) -> None:
        self.hessian += sums["hessian"].to(self.hessian)
