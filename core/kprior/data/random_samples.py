"""Random samples of the retained rows, with which a network is adapted.

The caller provides a `Draw`: that of the ledger reads single rows from the database, `draw_from` uses rows in memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from core.kprior.data.examples import Data, Examples, concatenate
from core.kprior.data.keyed_random import uniform
from core.kprior.model.predictor import Predictor

Draw = Callable[[int, int], Examples]
"""draw(count, seed): `count` distinct random rows of the retained data without added rows, or all of them if there are
fewer. The same seed gives the same rows."""

CHUNK_ROWS = 4_096
"""Rows that are drawn at a time."""
CHUNK_BYTES = 64 * 2**20
TAUGHT_ROWS = 256
"""Rows that get soft labels at a time: one large call is cheaper than one in each step."""

Teach = Callable[[Tensor], Tensor]
"""Returns the soft labels (n, K) of encoded inputs (n, ...)."""


class Minibatch(NamedTuple):
    """Encoded inputs, targets and weights of rows."""

    z: Tensor
    y: Tensor
    weight: Tensor
    soft: Tensor | None = None
    """Soft labels of the retained rows, which come first; None if nobody teaches them."""


def draw_from(examples: Examples) -> Draw:
    """Draw from rows in memory.

    Parameters
    ----------
    examples
        The retained rows, without added ones.

    Returns
    -------
    Draw
        Returns up to `count` distinct rows for (count, seed), each with equal probability.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Examples, draw_from
    >>> draw = draw_from(Examples(torch.arange(9), torch.zeros(9, 1), torch.zeros(9, 1)))
    >>> len(draw(4, 0)), len(draw(99, 0)), bool((draw(4, 1).key == draw(4, 1).key).all())
    (4, 9, True)
    """

    def draw(count: int, seed: int) -> Examples:
        generator = torch.Generator().manual_seed(seed)
        return examples.take(torch.randperm(len(examples), generator=generator)[:count])

    return draw


def sample_rows(data: Sequence[Data], limit: int, seed: int) -> Examples | None:
    """Return the `limit` rows with the smallest hashes, or all if there are fewer; None if there are none.

    At most twice as many rows are in memory.
    """
    held, size = [], 0
    for chunk in (chunk for some in data for chunk in some if len(chunk)):
        held.append(chunk)
        size += len(chunk)
        if size > 2 * limit:
            held = [keep_smallest(held, limit, seed)]
            size = limit
    return keep_smallest(held, limit, seed) if held else None


def keep_smallest(chunks: Sequence[Examples], limit: int, seed: int) -> Examples:
    """The rows whose keys have the smallest hashes, in their original order."""
    rows = concatenate(chunks)
    if len(rows) <= limit:
        return rows
    return rows.take(torch.argsort(uniform(rows.key.cpu(), seed))[:limit].sort().values)


class RowStream:
    """Encoded rows for successive minibatches: drawn in chunks, and reshuffled when all were used."""

    def __init__(
        self,
        predictor: Predictor,
        draw: Draw,
        seed: int,
        order: int = 0,
        avoid: Tensor | None = None,
        teach: Teach | None = None,
    ) -> None:
        """Streams with the same seed have the same rows, each in its own `order`. Keys to avoid are skipped."""
        self.predictor, self.draw, self.seed, self.avoid = predictor, draw, seed, avoid
        self.teach = teach
        self.size = self.chunk_size(predictor)
        self.generator = torch.Generator().manual_seed(seed + order)
        self._all, self._at = False, 0
        self.rows = self._draw_chunk()
        """The current chunk."""
        self._encode()
        self._shuffle()

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def chunk_size(predictor: Predictor) -> int:
        """Rows that are drawn at a time: fewer if inputs are large."""
        row = 4 * math.prod(predictor.encoder.raw_shape)
        return max(64, min(CHUNK_ROWS, CHUNK_BYTES // row))

    def take(self, count: int) -> Minibatch:
        """The next rows."""
        batches = []
        while count > 0:
            index = self._order[self._at : self._at + count]
            count, self._at = count - len(index), self._at + len(index)
            soft = None if self.teach is None else self._soft_labels(self.teach)[index]
            batches.append(Minibatch(self._z[index], self._y[index], self._v[index], soft))
            if self._at >= len(self._order):
                if not self._all:
                    self.rows = self._draw_chunk()
                    self._encode()
                self._shuffle()
        soft = None if self.teach is None else torch.cat([batch.soft for batch in batches if batch.soft is not None])
        return join_batches(batches)._replace(soft=soft)

    def _soft_labels(self, teach: Teach) -> Tensor:
        """(n, K) the soft labels of the chunk, as far as its rows were taken; they are computed once."""
        while self._taught < self._at:
            index = self._order[self._taught : self._taught + TAUGHT_ROWS]
            made = teach(self._z[index])
            if self._taught == 0:
                self._soft = made.new_empty(len(self._order), made.shape[1])
            self._soft[index] = made
            self._taught += len(index)
        return self._soft

    def _draw_chunk(self) -> Examples:
        rows = self.draw(self.size, self.seed)
        self.seed += 1
        self._all = len(rows) < self.size
        if len(rows):
            self.predictor.check(rows)
        if self.avoid is not None:
            rows = rows.take(~torch.isin(rows.key.cpu(), self.avoid))
        return rows

    def _encode(self) -> None:
        """Encode the chunk."""
        self._z = self.predictor.encode(self.rows.x)
        self._y = self.rows.y.to(self._z)
        weight = self.predictor.weigh(self.rows)
        self._v = torch.ones(len(self.rows)).to(self._z) if weight is None else weight.to(self._z)
        self._taught = 0

    def _shuffle(self) -> None:
        """Begin a new random order of the chunk."""
        self._order = torch.randperm(len(self.rows), generator=self.generator)
        self._at = 0


class Minibatches:
    """Minibatches for the adaptation of a network: drawn retained rows, and added rows.

    At least a quarter of each minibatch are added rows, weighted down to their natural share. Otherwise, a few new rows
    among many old ones would appear too late to be learnt within the budget.
    """

    def __init__(
        self, kept: RowStream, left: int, added: RowStream | None, new: int, size: int, min_added: float
    ) -> None:
        """`left` is the number of retained rows, `new` that of added rows."""
        self._kept, self._added = kept, added if new else None
        natural = new / max(1, left + new)
        fresh = 0 if self._added is None else min(len(self._added), round(size * max(natural, min_added)))
        self.kept = max(1, size - fresh) if len(kept) else 0
        """Number of retained rows, which come first in each minibatch."""
        self.added = fresh if self.kept else size
        if self.kept == 0:
            natural = 1.0
        weight = [torch.full((self.kept,), (1 - natural) * len(self) / max(1, self.kept))]
        weight.append(torch.full((self.added,), natural * len(self) / max(1, self.added)))
        self.weight = torch.cat(weight).to(kept.predictor.device)
        """Weight of each row besides its own; one on average."""

    def __len__(self) -> int:
        return self.kept + self.added

    def take(self) -> Minibatch:
        """The next minibatch."""
        batches = [self._kept.take(self.kept)] if self.kept else []
        if self._added is not None:
            batches.append(self._added.take(self.added))
        joined = join_batches(batches)
        return joined._replace(weight=self.weight * joined.weight, soft=batches[0].soft if self.kept else None)


def join_batches(batches: Sequence[Minibatch]) -> Minibatch:
    """Concatenate batches, without their soft labels."""
    if len(batches) == 1:
        return batches[0]
    return Minibatch(
        torch.cat([batch.z for batch in batches]),
        torch.cat([batch.y for batch in batches]),
        torch.cat([batch.weight for batch in batches]),
    )
