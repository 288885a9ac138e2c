"""The head of a tree ensemble: a GLM whose features are the leaves that a row falls into, and a constant.

A row has one leaf in each tree, so that 100 numbers represent its 3 100 features. `LeafRows` computes with these
numbers what `Glm.features` would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .glm import Glm

MAX_LEAF_FEATURES = 2_000_000


class Leaves(Glm):
    """f = sum of the weights of a row's leaves, plus a bias. Its inputs are the slots of `LeafEncoder`."""

    def __init__(self, shape: tuple[int, ...], outputs: int, leaves: int = 31, **_boosting: Any) -> None:
        super().__init__()
        self.width = shape[0] * leaves + 1
        if self.width > MAX_LEAF_FEATURES:
            raise ValueError(f"{shape[0]} trees with {leaves} leaves have more than {MAX_LEAF_FEATURES} leaves.")
        self.weight = nn.Parameter(torch.zeros(outputs, self.width))

    def features(self, z: Tensor) -> Tensor:
        return LeafRows(z.long(), self.width).features().to(z.dtype)

    def forward(self, z: Tensor) -> Tensor:
        return LeafRows(z.long(), self.width).outputs(self.weight)


@dataclass(frozen=True)
class LeafRows:
    """The features of rows, by the slots of their leaves."""

    slots: Tensor
    """(n, T) int64."""
    width: int
    """D: number of features, the constant included."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def leaves(self) -> int:
        """L: number of slots of a tree."""
        return (self.width - 1) // self.slots.shape[1]

    def features(self) -> Tensor:
        """(n, D) the features themselves."""
        made = torch.zeros(len(self), self.width, dtype=torch.float64, device=self.slots.device)
        made[:, -1] = 1
        return made.scatter_(1, self.slots, 1.0)

    def outputs(self, weight: Tensor) -> Tensor:
        """Phi W': (K, D) -> (n, K)."""
        if weight.shape[0] == 1:
            return weight[0][self.slots].sum(1, keepdim=True) + weight[0, -1]
        summed: Tensor = nn.functional.embedding_bag(self.slots, weight.T.contiguous(), mode="sum")
        return summed + weight[:, -1]

    def pull(self, values: Tensor) -> Tensor:
        """V' Phi: (n, K) -> (K, D), sums of values over the rows of each leaf."""
        columns = []
        flat = self.slots.reshape(-1)
        for column in values.T:
            each = column[:, None].expand(self.slots.shape).reshape(-1)
            summed = torch.bincount(flat, each, minlength=self.width)
            summed[-1] = column.sum()
            columns.append(summed)
        return torch.stack(columns)
