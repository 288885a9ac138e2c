"""The memorable past: the examples that a version remembers, and how many examples each of them represents."""

from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor


class Select(StrEnum):
    """How the memory is selected.

    Examples
    --------
    >>> from core.kprior import Select
    >>> [rule.value for rule in Select]
    ['auto', 'curvature', 'leverage', 'coverage', 'random']
    """

    AUTO = "auto"
    """`leverage` if the full Hessian is known (GLMs), else `random`."""
    CURVATURE = "curvature"
    """The paper's method: the rows with the largest trace of h'(f*), each representing itself."""
    LEVERAGE = "leverage"
    """Three quarters are the rows with the largest leverage, each representing itself; the rest is a random sample."""
    COVERAGE = "coverage"
    """Medoids of the encoded inputs, each representing its cluster."""
    RANDOM = "random"
    """A uniform sample, each row representing N / M rows."""


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
    """Maximum size, so that the cost of an adaptation does not grow with the past."""
    select: Select = Select.AUTO
    balance: bool = False
    """Select the same number from each class."""

    def size(self, count: int) -> int:
        """Number of examples to remember out of `count`: at least one."""
        return max(1, min(self.cap, round(self.fraction * count)))


@dataclass(frozen=True)
class MemoryChoice:
    """How one memory is chosen: by which policy, how large, and with which random numbers."""

    policy: MemoryPolicy
    size: int
    seed: int = 0
    generation: int = 0
    """Number of selections before this one."""


@dataclass(frozen=True)
class Memory:
    """References to examples, with the version's predictions for them. The caller keeps the inputs.

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
    """(m,) number of past examples that each represents."""
    soft: Tensor
    """(m, K) soft labels h* = h(f(w*, x))."""
    generation: int = 0
    """Number of earlier selections; each selection draws new random numbers."""

    def __len__(self) -> int:
        return self.key.shape[0]


def remember(predictor: Predictor, w: Tensor, rows: Examples, weight: Tensor, generation: int) -> Memory:
    """Build a memory of the given rows, with soft labels from the weights w."""
    soft = predictor.family.mean(predictor.outputs(w, rows.x))
    return Memory(rows.key.cpu(), weight.to(soft), soft, generation)
