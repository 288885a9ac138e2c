"""Finding examples with far larger numbers than all others, the likely cause if no model can be computed."""

import heapq

import torch
from torch import Tensor

from core.kprior import Data

EXTREME_RATIO = 1e4
"""Minimum ratio of an example's largest number to the typical magnitude."""
MAX_EXTREMES = 3


def find_extremes(data: Data) -> list[int]:
    """Positions of at most three examples whose largest number is far above the typical one, largest first."""
    largest: list[tuple[float, int]] = []
    logarithms, count = 0.0, 0
    for chunk in data:
        sizes = torch.maximum(size_of(chunk.x), size_of(chunk.y))
        logarithms += float(sizes.clamp(min=1e-300).log().sum())
        count += len(sizes)
        largest = heapq.nlargest(MAX_EXTREMES, [*largest, *zip(sizes.tolist(), chunk.key.tolist(), strict=True)])
    usual = torch.tensor(logarithms / max(1, count), dtype=torch.float64).exp().item()
    return [position for size, position in largest if size > EXTREME_RATIO * usual]


def size_of(numbers: Tensor) -> Tensor:
    """(n,) the largest absolute value of each row; missing values count as 0."""
    return numbers.reshape(len(numbers), -1).double().nan_to_num(nan=0.0).abs().amax(1)


def describe_extremes(positions: list[int]) -> str:
    """Advice about extreme examples, to be appended to an error message; "" if there are none."""
    if not positions:
        return ""
    which = f"position {positions[0]}" if len(positions) == 1 else f"positions {', '.join(map(str, positions))}"
    return f" The example at {which} contains far larger numbers than usual. Remove it and try again."
