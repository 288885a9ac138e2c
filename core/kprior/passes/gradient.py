"""A pass that computes only a GLM's gradient, which is all that the solver and the bound of a wide model need.

Passes on the way to the optimum use float32. The pass that certifies uses float64, bounds its own rounding error, and
collects what the bound of an unpenalised bias needs (`certificate/wide_bound.py`).
"""

from typing import ClassVar

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import EncodedExamples, Examples
from core.kprior.data.leaf_rows import leaf_rows
from core.kprior.model.families import Categorical, Family, Gaussian, Poisson
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import LeafRows
from core.kprior.passes.accumulator import ModelAccumulator

UNIT_ROUNDOFF = torch.finfo(torch.float64).eps / 2
CHUNK_NUMBERS = 2**20
"""Size of a chunk, which stays in the processor's cache between the two products of a pass."""
WINDOWS = 12
"""Number of halvings of a kinked loss's width for which the curvature that certainly stays is summed."""
MAX_COUPLED_CLASSES = 24
"""Largest number of classes for which the response of biases to weights is collected: it costs K / 4 passes."""


class Gradient(ModelAccumulator):
    """Value and gradient of the rows' losses at w, without the penalty."""

    kind = "gradient"
    options: ClassVar[tuple[str, ...]] = ("careful",)
    tensor_options: ClassVar[tuple[str, ...]] = ("centre",)

    def __init__(self, predictor: Predictor, w: Tensor, careful: bool = False, centre: Tensor | None = None) -> None:
        """`careful` passes use float64 and bound their rounding error; with a `centre` (D - 1,) of the inputs they also
        collect what the bound of an unpenalised bias needs.
        """
        super().__init__(predictor, w)
        self.careful, self.centre = careful, centre
        self.dtype = torch.float64 if careful else torch.float32
        self.work = predictor.size * 6.0
        K, D = predictor.family.outputs, predictor.size // predictor.family.outputs
        self.count, self.value, self.rounding, self.reach, self.blur = 0, 0.0, 0.0, 0.0, 0.0
        self.gradient = torch.zeros(K, D, dtype=torch.float64, device=w.device)
        self.targets = torch.zeros(K, dtype=torch.float64, device=w.device)
        """sum_i y_i, of careful passes: zero for a class without examples."""
        self.bias = torch.zeros(K, K, dtype=torch.float64, device=w.device)
        """sum_i h'_i: the Hessian of the biases."""
        self.scatter = torch.zeros(K, dtype=torch.float64, device=w.device)
        """sum_i h'_kk |x_i - c|^2."""
        self.windows = predictor.family.width * 0.5 ** torch.arange(
            1, WINDOWS + 1, dtype=torch.float64, device=w.device
        )
        self.held = torch.zeros(WINDOWS if predictor.family.kinked else 0, dtype=torch.float64, device=w.device)
        """The part of `bias` from rows whose curvature stays while outputs move by at most each of `windows`."""
        softmax, kinked = isinstance(predictor.family, Categorical), predictor.family.kinked
        couples = centre is not None and not kinked and (not softmax or K <= MAX_COUPLED_CLASSES)
        pairs = K * (K - 1) // 2 if softmax else K
        self.coupled = torch.zeros(pairs if couples else 0, D - 1, dtype=torch.float64, device=w.device)
        """sum_i h'_kl (x_i - c): response of biases to weights, for pairs k < l (or each k)."""

    def add(self, chunk: Examples) -> None:
        if (leaves := leaf_rows(self.predictor, chunk)) is not None and not self._needs_features:
            self._add_leaves(chunk, leaves)
            return
        # there may be many more features than inputs
        for some in chunk.chunks(max(16, CHUNK_NUMBERS // self.gradient.shape[1])):
            self._add(some)

    @property
    def _needs_features(self) -> bool:
        """Whether a kinked loss with an unpenalised bias asks for more than slots give."""
        return self.centre is not None and self.predictor.family.kinked

    def _add_leaves(self, chunk: Examples, rows: LeafRows) -> None:
        """`_add` for rows of a tree ensemble, in double precision, without their features."""
        family, W = self.predictor.family, self.w.view(self.gradient.shape)
        if not isinstance(chunk, EncodedExamples):
            self.predictor.check(chunk)
        weight = chunk.weight if isinstance(chunk, EncodedExamples) else self.predictor.weigh(chunk)
        y, f = chunk.y.to(W), rows.outputs(W)
        mean, residual, loss = family.terms(y, f)
        v = None if weight is None else weight.to(W)[:, None]
        self.count += len(rows)
        self.value += float((loss if v is None else loss * v[:, 0]).sum())
        self.gradient += rows.pull(residual if v is None else residual * v)
        if not self.careful:
            return
        self.targets += (y if v is None else y * v).sum(0)
        square = torch.full_like(f[:, 0], rows.slots.shape[1] + 1.0)
        rounding = pass_rounding(family, mean, residual, square, float(self.w.norm()), rows.slots.shape[1] + 1)
        self.rounding += float((rounding if v is None else rounding * v[:, 0]).sum())
        if self.centre is None:
            return
        centre = self.centre.to(W)
        along = rows.outputs(torch.cat([centre, centre.new_zeros(1)])[None])[:, 0]
        far = rows.slots.shape[1] - 2 * along + float(centre @ centre)
        variance = family.curvature(y, f) if v is None else family.curvature(y, f) * v
        scaled = mean if v is None else mean * v
        softmax = isinstance(family, Categorical)
        self.bias += torch.diag((scaled if softmax else variance).sum(0)) - (scaled.T @ mean if softmax else 0.0)
        self.scatter += far @ variance
        self.reach = max(self.reach, float(far.max()))
        if len(self.coupled):
            first, second = torch.triu_indices(mean.shape[1], mean.shape[1], 1, device=mean.device)
            terms = scaled[:, first] * mean[:, second] if softmax else variance
            self.coupled += rows.pull(terms)[:, :-1] - terms.sum(0)[:, None] * centre
            lost = far.clamp(min=0).sqrt() * (len(rows) + 16) + 4 * float(centre.norm())
            self.blur += 2 * torch.finfo(torch.float64).eps * float(lost @ variance.sum(1))

    def _add(self, chunk: Examples) -> None:
        family, W = self.predictor.family, self.w.view(self.gradient.shape).to(self.dtype)
        if isinstance(chunk, EncodedExamples):
            phi, weight = chunk.x.to(self.dtype), chunk.weight
        else:
            self.predictor.check(chunk)
            phi, weight = self.predictor.features(chunk.x).to(self.dtype), self.predictor.weigh(chunk)
        y = chunk.y.to(phi)
        f = (W @ phi.T).T  # one output after the other, which is how a softmax reads them
        mean, residual, loss = family.terms(y, f)
        v = None if weight is None else weight.to(phi)[:, None]
        self.count += len(phi)
        self.value += float((loss if v is None else loss * v[:, 0]).sum(dtype=torch.float64))
        self.gradient += ((residual if v is None else residual * v).T @ phi).double()
        if not self.careful:
            return
        self.targets += (y if v is None else y * v).sum(0)
        square = torch.linalg.vector_norm(phi, dim=1) ** 2
        rounding = pass_rounding(family, mean, residual, square, float(self.w.norm()), phi.shape[1])
        self.rounding += float((rounding if v is None else rounding * v[:, 0]).sum())
        if self.centre is None:
            return
        offset = phi[:, :-1] - self.centre
        far, variance = torch.linalg.vector_norm(offset, dim=1) ** 2, family.curvature(y, f)
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
            # float32 suffices: `blur` bounds its error
            q = mean.T.float()
            first, second = torch.triu_indices(len(q), len(q), 1, device=q.device)
            terms = q[first] * q[second] if isinstance(family, Categorical) else variance.T.float()
            if v is not None and isinstance(family, Categorical):
                terms = terms * v[:, 0].float()
            self.coupled += (terms @ offset.float()).double()
            lost = far.sqrt() * (len(phi) + 16) + 4 * float(self.centre.norm())
            self.blur += 2 * torch.finfo(torch.float32).eps * float(lost @ variance.sum(1))

    @property
    def coupling(self) -> Tensor | None:
        """(K, K, D - 1) for a softmax, (K, D - 1) for separate outputs; None if there are too many classes."""
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
            "targets": self.targets,
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
        for name in ("gradient", "targets", "bias", "scatter", "coupled", "held"):
            mine = getattr(self, name)
            setattr(self, name, mine + sums[name].to(mine))


def pass_rounding(family: Family, mean: Tensor, residual: Tensor, square: Tensor, length: float, size: int) -> Tensor:
    """Bound on the rounding error of each row's part of a float64 gradient, as a length (by Cauchy-Schwarz).

    The error of an output is at most (D + 3) u |phi| |w|; that of a mean is this times the largest slope of h (for
    counts, the mean itself); and that of a sum of products has one unit u per term, each times |phi_i|.
    """
    norm, K = square.sqrt(), mean.shape[1]
    outputs = (size + 3) * UNIT_ROUNDOFF * norm * length
    steep = mean.abs().amax(1) * 1.01 if isinstance(family, Poisson) else torch.full_like(norm, family.steepness)
    left = residual.norm(dim=1)
    scale = mean.norm(dim=1) + 1 + left if not isinstance(family, Gaussian) else 2 * mean.norm(dim=1) + 1 + left
    if family.kinked:  # sizes of the prediction and of the residual: nothing else is known about the target
        scale = 4 * (mean.norm(dim=1) + 1 + left)
    means = steep * outputs + (K + 16) * UNIT_ROUNDOFF * scale
    summed = (2 * len(norm) + 4096) * UNIT_ROUNDOFF * left
    each: Tensor = norm * (means + summed)
    return each
