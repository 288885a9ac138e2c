"""Labelled rows as tensors, which every pass of the engine reads.

Callers provide a `Data`: anything that can be iterated more than once and yields `Examples` of bounded size, such as a
list of chunks, or an object that streams a table from the beginning in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Examples:
    """n labelled rows as tensors.

    `key` is the caller's reference to a row; the engine does not interpret it.

    Raises
    ------
    ValueError
        If the tensors have different numbers of rows, or the wrong number of dimensions.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples
    >>> rows = Examples(torch.tensor([7, 8, 9]), torch.zeros(3, 2), torch.tensor([[0.0], [1.0], [1.0]]))
    >>> len(rows), rows.take(rows.y[:, 0] > 0).key.tolist(), [len(chunk) for chunk in rows.chunks(2)]
    (3, [8, 9], [2, 1])
    """

    key: Tensor
    """(n,) int64."""
    x: Tensor
    """(n, ...) raw inputs, before the encoder."""
    y: Tensor
    """(n, K) targets in the family's mean space: 0/1, one-hot rows, numbers or counts."""
    weight: Tensor | None = None
    """(n,) weight of each row, above 0; None if all are 1. `Predictor.weigh` includes the weight of the class."""

    def __post_init__(self) -> None:
        n = self.key.shape[0]
        if self.key.ndim != 1 or self.x.shape[:1] != (n,) or self.y.ndim != 2 or self.y.shape[0] != n:
            raise ValueError(
                f"key {tuple(self.key.shape)}, x {tuple(self.x.shape)} and y {tuple(self.y.shape)} "
                "must be (n,), (n, ...) and (n, K)."
            )
        if self.weight is not None and self.weight.shape != (n,):
            raise ValueError(f"weight {tuple(self.weight.shape)} must be (n,), like key {tuple(self.key.shape)}.")

    def __len__(self) -> int:
        return self.key.shape[0]

    def take(self, index: Tensor) -> Self:
        """Some of the rows.

        Parameters
        ----------
        index
            (m,) positions, or an (n,) boolean mask.
        """
        return self._pick(index)

    def bare(self) -> Examples:
        """The same rows without inputs and targets."""
        return Examples(self.key, self.x.new_zeros(len(self), 0), self.y.new_zeros(len(self), 0))

    def chunks(self, size: int) -> list[Self]:
        """The same rows, `size` at a time, without copies."""
        return [self._pick(slice(i, i + size)) for i in range(0, len(self), size)]

    def _pick(self, index: Tensor | slice) -> Self:
        return replace(self, **{name: tensor[index] for name, tensor in vars(self).items() if tensor is not None})


@dataclass(frozen=True)
class EncodedExamples(Examples):
    """Examples whose x are a GLM's features or a network's encoded inputs.

    Their weight is complete: it includes the weight of the class and the number of rows that each row represents.
    """


Data = Iterable[Examples]


def require_rereadable(data: Data) -> Data:
    """Return the data, or raise if it can be read only once: later passes would see nothing.

    Raises
    ------
    ValueError
        If `data` is an iterator.
    """
    if iter(data) is data:
        raise ValueError("data must be readable more than once. Pass a list of chunks, or an object that can restart.")
    return data


def chunks_of(sources: Iterable[Data]) -> Iterator[Examples]:
    """The chunks of several data in order, without empty ones."""
    return (chunk for data in sources for chunk in data if len(chunk))


def keys_of(sources: Iterable[Data]) -> Tensor:
    """The keys of all rows: (n,)."""
    chunks = chunks_of(require_rereadable(data) for data in sources)
    return torch.cat([torch.zeros(0, dtype=torch.long), *(chunk.key.cpu() for chunk in chunks)])


def concatenate(chunks: Sequence[Examples]) -> Examples:
    """The rows of all chunks, in order. There must be at least one chunk."""
    key, x, y = (torch.cat([getattr(chunk, name) for chunk in chunks]) for name in ("key", "x", "y"))
    if all(chunk.weight is None for chunk in chunks):
        return Examples(key, x, y)
    weights = [torch.ones(len(c), dtype=torch.float64) if c.weight is None else c.weight.double() for c in chunks]
    return Examples(key, x, y, torch.cat([weight.to(x.device) for weight in weights]))
