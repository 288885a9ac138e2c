"""Means and standard deviations of columns, and the units of an encoder, which follow from them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Data, Examples
from core.kprior.model.input_encoders import Encoder, TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import Accumulator
from core.kprior.passes.partitioned import accumulate

MIN_COUNT = 1e-300
"""Replaces a count of zero, to avoid a division by zero."""


class Moments(Accumulator):
    """Weighted count, mean and sum of squared deviations of the values of columns."""

    kind = "moments"

    def __init__(self, columns: list[int]) -> None:
        self.columns = columns
        self.count, self.mean, self.square = torch.zeros(3, len(columns), dtype=torch.float64)

    def empty(self) -> Self:
        return type(self)(self.columns)

    def add(self, chunk: Examples) -> None:
        x = chunk.x[:, self.columns].double().cpu()
        there = ~x.isnan()
        v = there.double() if chunk.weight is None else there * chunk.weight.double().cpu()[:, None]
        n = v.sum(0)
        m = torch.where(there, x * v, 0.0).sum(0) / n.clamp(min=MIN_COUNT)
        self.merge({"count": n, "mean": m, "square": torch.where(there, (x - m) ** 2 * v, 0.0).sum(0)})

    def sums(self) -> Tensors:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def merge(self, sums: Tensors) -> None:
        # Chan's pairwise update: a plain sum of squares loses all digits of a column such as 1e9 + noise
        n, m = sums["count"], sums["mean"]
        total = (self.count + n).clamp(min=MIN_COUNT)
        self.square = self.square + sums["square"] + (m - self.mean) ** 2 * self.count * n / total
        self.mean = self.mean + (m - self.mean) * n / total
        self.count = self.count + n

    @property
    def deviation(self) -> Tensor:
        """The standard deviations."""
        found: Tensor = (self.square / self.count.clamp(min=MIN_COUNT)).sqrt()
        return found

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        return {"columns": self.columns}, {}

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Moments:
        return cls(header["columns"])


class TargetMoments(Moments):
    """The moments of targets."""

    kind = "target_moments"

    def add(self, chunk: Examples) -> None:
        super().add(Examples(chunk.key, chunk.y, chunk.y, chunk.weight))


def initial_weights_from(predictor: Predictor, data: Data) -> Tensor:
    """Initial (P,) weights of a network for the data; targets other than classes need one pass."""
    if predictor.family.classifies:
        return predictor.initial_weights()
    seen = accumulate(data, TargetMoments(list(range(predictor.family.outputs))))
    return predictor.initial_weights_for(seen.mean, seen.deviation)


def fit_encoder(encoder: Encoder, data: Data) -> None:
    """Compute an encoder's buffers in one pass; encoders without buffers need none."""
    if isinstance(encoder, TableEncoder):
        seen = accumulate(data, Moments(encoder.numbers))
        encoder.set_units(seen.mean, seen.deviation)


def encoder_fits(encoder: Encoder, data: Data, unscaled: bool = False) -> bool:
    """Whether the buffers contain no trace of other examples: the data alone would give the same buffers.

    Parameters
    ----------
    encoder
        The encoder of a model, with the buffers from its first training.
    data
        Read once, unless the encoder has no buffers.
    unscaled
        Also accept units of 0 and 1 that were not measured: an imported model may use its columns unscaled.
    """
    if not encoder.state_dict() or (unscaled and isinstance(encoder, TableEncoder) and encoder.is_plain):
        return True
    fresh = deepcopy(encoder)
    fit_encoder(fresh, data)
    return all(torch.equal(mine, theirs) for mine, theirs in zip(encoder.buffers(), fresh.buffers(), strict=True))
