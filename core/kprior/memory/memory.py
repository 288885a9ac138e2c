"""The memorable past: which examples a version remembers, and how much each of them stands for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor


class Select(StrEnum):
    """How memory is chosen."""

    AUTO = "auto"
    """`leverage` where the whole Hessian is known (GLMs), else `random`."""
    CURVATURE = "curvature"
    """The paper's: the largest trace of h'(f*), each standing for itself."""
    LEVERAGE = "leverage"
    """Three quarters are the rows that can move the curvature most, each for itself; the rest is a random sample."""
    COVERAGE = "coverage"
    """Medoids of the encoded inputs, each standing for its cluster."""
    RANDOM = "random"
    """Uniform, each standing for N / M."""


@dataclass(frozen=True)
class MemoryPolicy:
    """How much to remember, and which examples."""

    fraction: float = 0.02
    cap: int = 5_000
    """Never more than this, whatever the fraction: an adaptation's cost must not grow with the past."""
    select: Select = Select.AUTO
    balance: bool = False
    """As many from each class."""

    def size(self, count: int) -> int:
        """How many of `count` examples to remember: at least one."""
        return max(1, min(self.cap, round(self.fraction * count)))


@dataclass(frozen=True)
class Memory:
    """References to examples, with what the version said of them. The inputs stay with the caller."""

    key: Tensor
    """(m,) int64."""
    weight: Tensor
    """(m,) how many past examples each stands for."""
    soft: Tensor
    """(m, K) soft labels h* = h(f(w*, x))."""
    generation: int = 0
    """How often memory was selected; each selection draws anew."""

    def __len__(self) -> int:
        return self.key.shape[0]


def remember(predictor: Predictor, w: Tensor, rows: Examples, weight: Tensor, generation: int) -> Memory:
    """A memory of the given rows, with soft labels of the weights w."""
    soft = predictor.family.mean(predictor.outputs(w, rows.x))
    return Memory(rows.key.cpu(), weight.to(soft), soft, generation)
