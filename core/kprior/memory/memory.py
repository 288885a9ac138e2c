"""The memorable past: which examples a version remembers, and how much each of them stands for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor


class Select(StrEnum):
    """How memory is chosen.

    Examples
    --------
    >>> from core.kprior import Select
    >>> [rule.value for rule in Select]
    ['auto', 'curvature', 'leverage', 'coverage', 'random']
    """

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
    """How much to remember, and which examples.

    Examples
    --------
    >>> from core.kprior import MemoryPolicy
    >>> policy = MemoryPolicy(fraction=0.02, cap=5_000)
    >>> policy.size(10), policy.size(10_000), policy.size(10**9)
    (1, 200, 5000)
    """

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
    """References to examples, with what the version said of them. The inputs stay with the caller.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Memory
    >>> memory = Memory(torch.tensor([3, 8]), torch.tensor([1.0, 40.0]), torch.tensor([[0.9], [0.2]]))
    >>> len(memory), float(memory.weight.sum())  # two rows that stand for 41
    (2, 41.0)
    """

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
