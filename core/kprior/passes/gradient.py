"""A pass for a GLM's gradient alone: all that a wide model's solver, and its bound, need.

Passes on the way to the optimum are float32; the one that certifies is float64, counts what its own rounding can do,
and gathers what the bound of a free bias needs (`certificate/wide_bound.py`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import EncodedExamples, Examples
from core.kprior.model.families import Categorical, Family, Gaussian, Poisson
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator

UNIT_ROUNDOFF = torch.finfo(torch.float64).eps / 2
CHUNK_NUMBERS = 2**20
"""Numbers in a chunk: what stays in the processor's cache between the two products of a pass."""
WINDOWS = 12
"""Halvings of a loss's width for which it is added up what curvature is sure to stay (kinked losses)."""
MAX_COUPLED_CLASSES = 24
"""Softmaxes of up to so many classes gather how their biases respond to weights: the work of K / 4 passes."""


class Gradient(ModelAccumulator):
    """Value and gradient of the rows' losses at w, without the penalty."""

    kind = "gradient"
    options: ClassVar[tuple[str, ...]] = ("careful",)
    tensor_options: ClassVar[tuple[str, ...]] = ("centre",)

    def __init__(self, predictor: Predictor, w: Tensor, careful: bool = False, centre: Tensor | None = None) -> None:
        """`careful` passes are float64 and bound their rounding; with a `centre` (D - 1,) of the inputs they gather
        what the bound of a free bias needs.
        """
        super().__init__(predictor, w)
        self.careful, self.centre = careful, centre
        self.dtype = torch.float64 if careful else torch.float32
        self.work = predictor.size * 6.0
        K, D = predictor.family.outputs, predictor.size // predictor.family.outputs
        self.count, self.value, self.rounding, self.reach, self.blur = 0, 0.0, 0.0, 0.0, 0.0
        self.gradient = torch.zeros(K, D, dtype=torch.float64, device=w.device)
        self.bias = torch.zeros(K, K, dtype=torch.float64, device=w.device)
        """sum_i h'_i: the Hessian of the biases."""
        self.scatter = torch.zeros(K, dtype=torch.float64, device=w.device)
        """sum_i h'_kk |x_i - c|^2."""
        self.windows = predictor.family.width * 0.5 ** torch.arange(
            1, WINDOWS + 1, dtype=torch.float64, device=w.device
        )
        self.held = torch.zeros(WINDOWS if predictor.family.kinked else 0, dtype=torch.float64, device=w.device)
        """Of `bias`, what rows have that keep their curvature while outputs move by no more than each of `windows`."""
        softmax, kinked = isinstance(predictor.family, Categorical), predictor.family.kinked
        couples = centre is not None and not kinked and (not softmax or K <= MAX_COUPLED_CLASSES)
        pairs = K * (K - 1) // 2 if softmax else K
        self.coupled = torch.zeros(pairs if couples else 0, D - 1, dtype=torch.float64, device=w.device)
        """sum_i h'_kl (x_i - c): how biases answer to weights, for each pair k < l (one output each: for each)."""

    def add(self, chunk: Examples) -> None:
        # features may be many more than inputs
        for some in chunk.chunks(max(16, CHUNK_NUMBERS // self.gradient.shape[1])):
            self._add(some)

    def _add(self, chunk: Examples) -> None:
        family, W = self.predictor.family, self.w.view(self.gradient.shape).to(self.dtype)
        if isinstance(chunk, EncodedExamples):
            phi, weight = chunk.x.to(self.dtype), chunk.weight
        else:
            self.predictor.check(chunk)
            phi, weight = self.predictor.features(chunk.x).to(self.dtype), self.predictor.weigh(chunk)
        y = chunk.y.to(phi)
        f = phi @ W.T
        mean = family.mean(f)
        residual, loss = family.residual(y, f), family.loss(y, f)
        # a column that multiplies rows of sums, or nothing to multiply by
        v = None if weight is None else weight.to(phi)[:, None]
        self.count += len(phi)
        self.value += float((loss if v is None else loss * v[:, 0]).sum(dtype=torch.float64))
        self.gradient += ((residual if v is None else residual * v).T @ phi).double()
        if not self.careful:
            return
        square = (phi**2).sum(1)
        rounding = pass_rounding(family, mean, residual, square, float(self.w.norm()), phi.shape[1])
        self.rounding += float((rounding if v is None else rounding * v[:, 0]).sum())
        if self.centre is None:
            return
        offset = phi[:, :-1] - self.centre
        far, variance = (offset**2).sum(1), family.curvature(y, f)
        if v is not None:
            variance = variance * v
        if isinstance(family, Categorical):
            scaled = mean if v is None else mean * v
            self.bias += torch.diag(scaled.sum(0)) - scaled.T @ mean
        else:
            self.bias += torch.diag(variance.sum(0))
        self.scatter += far @ variance
        if family.kinked:
            lost = (phi.shape[1] + 3) * UNIT_ROUNDOFF * square.sqrt() * self.w.norm()
            slack = family.slack(y, f)[:, 0] - lost
            self.held += (variance[:, 0] * (slack > self.windows[:, None])).sum(1)
        self.reach = max(self.reach, float(far.max()))
        if len(self.coupled):
            # float32 is enough: what it loses is bounded by `blur`
            q = mean.float()
            first, second = torch.triu_indices(q.shape[1], q.shape[1], 1, device=q.device)
            terms = q[:, first] * q[:, second] if isinstance(family, Categorical) else variance.float()
            if v is not None and isinstance(family, Categorical):
                terms = terms * v.float()
            self.coupled += (terms.T @ offset.float()).double()
            lost = far.sqrt() * (len(phi) + 16) + 4 * float(self.centre.norm())
            self.blur += 2 * torch.finfo(torch.float32).eps * float(lost @ variance.sum(1))

    @property
    def coupling(self) -> Tensor | None:
        """(K, K, D - 1) of a softmax, (K, D - 1) of outputs that stand alone; None where they are too many."""
        if len(self.coupled) == 0:
            return None
        if not isinstance(self.predictor.family, Categorical):
            return self.coupled
        K = self.predictor.family.outputs
        first, second = torch.triu_indices(K, K, 1, device=self.coupled.device)
        whole = torch.zeros(K, K, self.coupled.shape[1], dtype=torch.float64, device=self.coupled.device)
        whole[first, second] = -self.coupled
        whole = whole + whole.transpose(0, 1)
        own = torch.arange(K, device=whole.device)
        whole[own, own] = -whole.sum(1)
        return whole

    def sums(self) -> Tensors:
        scalars = [self.value, self.rounding, self.reach, self.blur]
        return {
            "count": torch.tensor(self.count),
            "scalars": torch.tensor(scalars, dtype=torch.float64),
            "gradient": self.gradient,
            "bias": self.bias,
            "scatter": self.scatter,
            "coupled": self.coupled,
            "held": self.held,
        }

    def merge(self, sums: Tensors) -> None:
        value, rounding, reach, blur = sums["scalars"].tolist()
        self.count += int(sums["count"])
        self.value, self.rounding, self.blur = self.value + value, self.rounding + rounding, self.blur + blur
        self.reach = max(self.reach, reach)
        for name in ("gradient", "bias", "scatter", "coupled", "held"):
            mine = getattr(self, name)
            setattr(self, name, mine + sums[name].to(mine))


def pass_rounding(family: Family, mean: Tensor, residual: Tensor, square: Tensor, length: float, size: int) -> Tensor:
    """What rounding in float64 can do to each row's part of a gradient at the most: lengths, by Cauchy and Schwarz.

    An output is off by (D + 3) u |phi| |w|, a mean by that times the largest slope of h (counts: by their own size),
    and a sum of products by as many units as it has terms, each times |phi_i|.
    """
    norm, K = square.sqrt(), mean.shape[1]
    outputs = (size + 3) * UNIT_ROUNDOFF * norm * length
    steep = mean.abs().amax(1) * 1.01 if isinstance(family, Poisson) else torch.full_like(norm, family.steepness)
    left = residual.norm(dim=1)
    scale = mean.norm(dim=1) + 1 + left if not isinstance(family, Gaussian) else 2 * mean.norm(dim=1) + 1 + left
    if family.kinked:  # a prediction, and what is left of it: of a target no more is known
        scale = 4 * (mean.norm(dim=1) + 1 + left)
    means = steep * outputs + (K + 16) * UNIT_ROUNDOFF * scale
    summed = (2 * len(norm) + 4096) * UNIT_ROUNDOFF * left
    each: Tensor = norm * (means + summed)
    return each
