"""What a pass measures of a GLM with one output besides gradient and Hessian: third derivatives, and feature ranges.

With T = sum_i v_i h''(f_i) phi_i (x) phi_i (x) phi_i, the gradient of the past is known to second order around the
anchor, T[d, d] / 2 beyond its tangent. The ranges of the features bound how far the output of any row moves. With both,
the bound without a pass (`certificate/anchored_bound.py`) lasts for many changes where leverages alone are of little
use: a table with rare categories has rows of high leverage, but each of their outputs moves by the known change of one
category's weight and little else.

A table's rows have few nonzero features (one indicator per category column), so that T costs little more than the
Hessian. For dense rows it costs D times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples
from core.kprior.model.architectures import Linear
from core.kprior.model.glm import Glm
from core.kprior.model.input_encoders import TableEncoder
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator
from core.kprior.passes.rounding_error import EPSILON, round_down, round_up

MAX_FEATURES = 100
"""T of more features would be larger than all other parts of a state."""
MAX_WORK = 3e9
"""The largest number of multiplications of one pass for T: a fraction of a second."""
STEP_ROWS = 4096
"""Rows whose products are summed at a time."""
RANGE_SLACK = 1 + 2.0**-30
"""Allows for the rounding of an output."""


@dataclass(frozen=True)
class Detail:
    """Third derivatives of rows at given weights, and the ranges of their features."""

    third: Tensor
    """(D (D + 1) (D + 2) / 6,) the entries a <= b <= c of the symmetric T, in lexicographic order."""
    mass: float
    """sum_i v_i h'(f_i) |phi_i|^3 (2 + |phi_i|' |w|) of everything that was ever added or subtracted; the rounding
    error of T grows with it."""
    low: Tensor
    """(D,) lower bounds of the features of all rows."""
    high: Tensor
    """(D,) upper bounds."""
    together: Tensor
    """(D, D) bool: False for two features of which no row has both."""

    @classmethod
    def of_rows(cls, predictor: Predictor, w: Tensor, phi: Tensor, weight: Tensor | None = None) -> Detail:
        """The detail of rows with features phi (n, D), n > 0."""
        D, family = phi.shape[1], predictor.family
        T, mass = torch.zeros(D, D, D, dtype=phi.dtype, device=phi.device), 0.0
        together = torch.zeros(D, D, dtype=torch.bool, device=phi.device)
        for start in range(0, len(phi), STEP_ROWS):
            rows = slice(start, start + STEP_ROWS)
            some, f = phi[rows], phi[rows] @ w[:, None]
            slope, variance = family.slope_of_variance(f), family.variance(f)
            assert slope is not None
            slope, variance = slope[:, 0], variance[:, 0]
            if weight is not None:
                slope, variance = slope * weight[rows], variance * weight[rows]
            mass += float((variance * some.norm(dim=1) ** 3 * (2 + some.abs() @ w.abs())).sum())
            present = some != 0
            add_products(T, some, slope, present)
            counted = present.float()
            together |= counted.T @ counted > 0
        return cls(T[indices(D)], mass, phi.amin(0), phi.amax(0), together)

    def plus(self, other: Detail) -> Detail:
        """With the rows of another one."""
        return Detail(
            self.third + other.third,
            self.mass + other.mass,
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            self.together | other.together,
        )

    def minus(self, other: Detail) -> Detail:
        """Without rows that it contains. The ranges stay."""
        return replace(self, third=self.third - other.third, mass=self.mass + other.mass)

    def rounded(self) -> Detail:
        """With bounds that reveal little about single rows."""
        low = torch.tensor([round_down(value) for value in self.low.tolist()], dtype=self.low.dtype)
        high = torch.tensor([round_up(value) for value in self.high.tolist()], dtype=self.low.dtype)
        return replace(self, mass=round_up(self.mass), low=low, high=high)

    def bend(self, d: Tensor) -> Tensor:
        """T[d, d] / 2: (D,) -> (D,)."""
        a, b, c = indices(len(d))
        # the gradient of T[d, d, d] / 6; an entry stands for all permutations of its indices
        entry = self.third * permutations(len(d)) / 6
        u, v, w = d[a], d[b], d[c]
        out = torch.zeros_like(d)
        return out.index_add_(0, a, entry * v * w).index_add_(0, b, entry * u * w).index_add_(0, c, entry * u * v)

    def bend_error(self, d: Tensor) -> float:
        """Bound of the rounding error of `bend`, in Euclidean length."""
        return 4 * EPSILON * self.mass * float(d @ d)

    def spread(self, d: Tensor) -> float:
        """Upper bound of |phi_i' d| for all rows.

        Features of which no row has two contribute at most the largest of their terms, and nothing if a row has none.
        """
        ends = torch.stack([self.low * d, self.high * d])
        least, most = ends.amin(0), ends.amax(0)
        low = high = 0.0
        for group in exclusive_groups(self.together):
            if len(group) == 1:
                low, high = low + float(least[group[0]]), high + float(most[group[0]])
            else:
                low += min(0.0, float(least[group].min()))
                high += max(0.0, float(most[group].max()))
        return max(-low, high, 0.0) * RANGE_SLACK

    def tensors(self) -> Tensors:
        """All parts by name."""
        mass = torch.tensor(self.mass, dtype=torch.float64)
        return {"third": self.third, "mass": mass, "low": self.low, "high": self.high, "together": self.together}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Detail:
        """The inverse of `tensors`."""
        third, low, high, together = (tensors[name] for name in ("third", "low", "high", "together"))
        D = len(low)
        if third.shape != indices(D)[0].shape or high.shape != (D,) or together.shape != (D, D):
            raise ValueError("The third derivatives do not fit the weights.")
        return cls(third, float(tensors["mass"]), low, high, together)


def add_products(T: Tensor, phi: Tensor, scale: Tensor, present: Tensor) -> None:
    """Add sum_i scale_i phi_i (x) phi_i (x) phi_i to the entries a <= b, c of T; `present` is phi != 0."""
    for a, count in enumerate(present.sum(0).tolist()):
        if count == 0:
            continue
        part, column = phi[:, a:], phi[:, a] * scale
        if 2 * count < len(phi):
            chosen = torch.nonzero(present[:, a])[:, 0]
            part, column = part[chosen], column[chosen]
        T[a, a:, a:].addmm_(part.T * column, part)


def exclusive_groups(together: Tensor) -> list[list[int]]:
    """A partition of the features into groups of which no row has two.

    >>> exclusive_groups(torch.tensor([[True, False, True], [False, True, True], [True, True, True]]))
    [[0, 1], [2]]
    """
    groups: list[list[int]] = []
    for feature, others in enumerate(together.tolist()):
        for group in groups:
            if not any(others[member] for member in group):
                group.append(feature)
                break
        else:
            groups.append([feature])
    return groups


@lru_cache(maxsize=4)
def indices(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """All a <= b <= c below `size`."""
    a, b, c = torch.combinations(torch.arange(size), 3, with_replacement=True).T.contiguous()
    return a, b, c


@lru_cache(maxsize=4)
def permutations(size: int) -> Tensor:
    """The number of different permutations of each of the `indices`."""
    a, b, c = indices(size)
    return torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)[(a == b).long() + (b == c).long()]


def has_affordable_detail(predictor: Predictor, count: int) -> bool:
    """Whether the detail of `count` rows takes a fraction of a second and little memory."""
    body, encoder, D = predictor.body, predictor.encoder, predictor.size
    if not isinstance(body, Glm) or body.blur or predictor.family.outputs != 1 or predictor.device.type != "cpu":
        return False
    if D > MAX_FEATURES or predictor.family.slope_of_variance(torch.zeros(1, 1)) is None:
        return False
    nonzero = D
    if isinstance(encoder, TableEncoder) and isinstance(body, Linear) and body.degree == 1:
        nonzero = len(encoder.numbers) + len(encoder.categories) + 1
    return count * nonzero * D * D <= MAX_WORK


class DetailSum(ModelAccumulator):
    """The detail of all rows."""

    kind = "detail"

    def __init__(self, predictor: Predictor, w: Tensor) -> None:
        super().__init__(predictor, w)
        self.work = float(predictor.size**3)
        self.detail: Detail | None = None
        """None without rows."""

    def add(self, chunk: Examples) -> None:
        phi, weight = self.predictor.features(chunk.x), self.predictor.weigh(chunk)
        self._plus(Detail.of_rows(self.predictor, self.w, phi, weight))

    def _plus(self, other: Detail) -> None:
        self.detail = other if self.detail is None else self.detail.plus(other)

    def sums(self) -> Tensors:
        return {} if self.detail is None else self.detail.tensors()

    def merge(self, sums: Tensors) -> None:
        if sums:
            self._plus(Detail.from_tensors({name: tensor.to(self.w.device) for name, tensor in sums.items()}))
