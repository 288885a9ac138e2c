"""The curvature of a network's last layer, from which its uncertainty is estimated."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from core.kprior.curvature import glm_hessian
from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples
from core.kprior.model.architectures import layers_of
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator

MAX_LAST_LAYER_SIZE = 2_000
"""Largest number of weights of a last layer whose curvature is stored."""
IGNORED_CURVATURE = 1e-3
"""Fraction of an estimated curvature's trace that is left out. A classifier is sure of most rows."""


@dataclass(frozen=True)
class LastLayer:
    """Sums over all rows that a network was trained on, or estimates of them."""

    curvature: Tensor
    """(K D, K D) float32: sum_i v_i phi_i h'(f_i) phi_i', phi being the inputs of the last layer, and 1."""
    value: Tensor
    """() sum of the losses."""


class LastLayerSum(ModelAccumulator):
    """Curvature of the last layer, for networks that have one (`has_last_layer`)."""

    kind = "last_layer"

    def __init__(self, predictor: Predictor, w: Tensor) -> None:
        super().__init__(predictor, w)
        size = last_size(predictor)
        self.work = 2.0 * predictor.size + size**2 / 2
        self.curvature = torch.zeros(size, size, dtype=torch.float64, device=w.device)
        self.value = torch.zeros((), dtype=torch.float64, device=w.device)

    def add(self, chunk: Examples) -> None:
        weight = self.predictor.weigh(chunk)
        self.add_weighted(chunk, weight)

    def add_weighted(self, chunk: Examples, weight: Tensor | None, ignored: float = 0.0) -> None:
        """Add rows with weights. Rows with the least curvature may be left out of the curvature, up to a fraction
        `ignored` of its trace."""
        phi = self.predictor.last_features(chunk.x, self.w).double()
        K = self.predictor.family.outputs
        ours = self.w[-K * phi.shape[1] :].double()
        f = phi[:, :-1] @ ours[:-K].view(K, -1).T + ours[-K:]
        loss = self.predictor.family.loss(chunk.y.to(f), f)
        v = None if weight is None else weight.to(f)
        self.value += (loss if v is None else loss * v).sum()
        if ignored:
            traces = self.predictor.family.variance(f).sum(1) * phi.square().sum(1)
            order = torch.argsort(traces if v is None else traces * v)
            least = torch.cumsum((traces if v is None else traces * v)[order], 0)
            most = order[least > ignored * least[-1]]
            phi, f, v = phi[most], f[most], None if v is None else v[most]
        self.curvature += glm_hessian(phi, self.predictor.family, f, v)

    def sums(self) -> Tensors:
        return {"curvature": self.curvature, "value": self.value}

    def merge(self, sums: Tensors) -> None:
        self.curvature += sums["curvature"].to(self.curvature)
        self.value += sums["value"].to(self.value)

    def take(self, scale: float = 1.0) -> LastLayer:
        """The sums, multiplied by `scale`."""
        return LastLayer((scale * self.curvature).float().cpu(), (scale * self.value).cpu())


def last_size(predictor: Predictor) -> int:
    """Number of weights of a network's last layer; 0 if the layer is not known or has no bias."""
    layers = layers_of(predictor.body)
    last = layers[-1] if layers else None
    if not isinstance(last, nn.Linear) or last.bias is None:
        return 0
    return last.weight.numel() + last.bias.numel()


def has_last_layer(predictor: Predictor) -> bool:
    """Whether a model is a network whose last layer's curvature can be stored."""
    return not predictor.linear and 0 < last_size(predictor) <= MAX_LAST_LAYER_SIZE


def estimate_last_layer(
    predictor: Predictor, w: Tensor, groups: Iterable[tuple[Examples | None, int]]
) -> LastLayer | None:
    """Estimate the sums from a random sample of each group and the size of the group; None without a last layer."""
    if not has_last_layer(predictor):
        return None
    total = LastLayerSum(predictor, w)
    for rows, count in groups:
        if rows is None or len(rows) == 0:
            continue
        own, scale = predictor.weigh(rows), count / len(rows)
        weight = torch.full((len(rows),), scale, dtype=torch.float64, device=w.device)
        total.add_weighted(rows, weight if own is None else weight * own, IGNORED_CURVATURE)
    return total.take()
