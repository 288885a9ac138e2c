"""Sums of losses over rows, the terms of an objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from core.kprior.data.examples import Data, EncodedExamples, chunks_of, concatenate, require_rereadable
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import Accumulator, add_shards
from core.kprior.passes.loss import Loss
from core.kprior.passes.partitioned import PartitionedData, shards_of
from core.kprior.passes.row_count import Count

CACHE_BYTES = 2**28
"""Encoded inputs up to this size are kept between the passes of one solve; larger ones are encoded in every pass."""
SHUFFLE_BYTES = CACHE_BYTES // 8
"""Rows that are not kept are shuffled within chunks of this size."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Encoded inputs (GLM: features), targets, weights."""


class Term:
    """sum_i v_i l(t_i, f_i(w)) over rows that are read again in every pass."""

    def __init__(
        self,
        predictor: Predictor,
        data: Data,
        targets: Tensor | None = None,
        weight: Tensor | None = None,
        past: bool = False,
    ) -> None:
        """A term over rows that can be read more than once.

        `targets` (n, K) replace the labels. `weight` (n,) is the number of examples that each row represents, in
        addition to the weight of the row itself. `past` says that the rows are past data; passes over these are
        counted.
        """
        self.predictor, self._data, self._targets, self._weight = predictor, require_rereadable(data), targets, weight
        self.past = past
        self._cache: list[list[EncodedExamples]] | None = None
        self.count: int | None = None

    @classmethod
    def of_features(cls, predictor: Predictor, phi: Tensor, targets: Tensor, weight: Tensor | None = None) -> Term:
        """A term of rows of a GLM whose features are known."""
        term = cls(predictor, [], targets)
        term._cache, term.count = [[EncodedExamples(torch.arange(len(phi)), phi, targets, weight)]], len(phi)
        return term

    def shards(self) -> Sequence[Iterable[EncodedExamples]]:
        """The encoded rows, in the shards of their data; they must be read in order, because reading caches them."""
        if self._cache is not None:
            return self._cache
        shards = shards_of(self._data)
        kept: list[list[EncodedExamples]] | None = [[] for _ in shards]
        size, start = 0, 0

        def encode(number: int, shard: Data) -> Iterator[EncodedExamples]:
            nonlocal kept, size, start
            for chunk in chunks_of([shard]):
                if self.count is None:
                    self.predictor.check(chunk)
                z = self.predictor.features(chunk.x) if self.predictor.linear else self.predictor.encode(chunk.x)
                span = slice(start, start + len(chunk))
                targets = chunk.y if self._targets is None else self._targets[span]
                weight = row_weights(
                    None if self._weight is None else self._weight[span].to(z), self.predictor.weigh(chunk)
                )
                start += len(chunk)
                rows = EncodedExamples(chunk.key, z, targets.to(z), weight)
                size += z.numel() * z.element_size()
                if size > CACHE_BYTES:
                    kept = None
                if kept is not None:
                    kept[number].append(rows)
                yield rows
            if number == len(shards) - 1:
                self._cache, self.count = kept, start

        return [encode(number, shard) for number, shard in enumerate(shards)]

    def __iter__(self) -> Iterator[EncodedExamples]:
        return chain.from_iterable(self.shards())

    def evaluate(self, w: Tensor, hessian: bool = False) -> Loss:
        """Value, gradient and (GLM, on demand) Hessian of all rows.

        Cached rows are also summed shard by shard, so that the result does not depend on who sums them.
        """
        total = Loss(self.predictor, w, with_hessian=hessian)
        if (data := self._distributed(total)) is not None:
            self.count = data.accumulate(total).count
            return total
        return add_shards(self.shards(), total)

    def _distributed(self, total: Accumulator) -> PartitionedData | None:
        """The data, if several processes would sum its rows, and these have neither other targets nor weights."""
        plain = self.predictor.linear and self._targets is None and self._weight is None
        distributed = plain and isinstance(self._data, PartitionedData) and self._data.is_distributed(total)
        return self._data if distributed else None  # type: ignore[return-value]

    @property
    def cached(self) -> bool:
        """Whether the rows are kept between passes."""
        return self._cache is not None

    def whole(self) -> Batch:
        """All cached rows as one batch."""
        assert self._cache is not None
        if sum(map(len, self._cache)) > 1:
            self._cache = [[join_rows(list(self))]]
        return batch_of(next(iter(self)))

    def stands_for(self) -> int:
        """Number of examples in an epoch of this term."""
        return self.rows()

    def rows(self) -> int:
        """The number of rows; takes a pass over the data if none was made yet."""
        if self.count is None:
            total = Count(self.predictor, self.predictor.initial_weights())
            if (data := self._distributed(total)) is not None:
                self.count = data.accumulate(total).count
            else:
                for _ in self:
                    pass
        assert self.count is not None
        return self.count

    def loss(self, f: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The value of the term on some of its rows, given their outputs."""
        loss = self.predictor.family.loss(targets, f)
        return (loss if weight is None else loss * weight).sum()

    def minibatches(self, steps: int, size: int | None, generator: torch.Generator) -> Iterator[tuple[Batch, float]]:
        """`steps` batches that cover the rows once, each with the factor that makes its sum unbiased."""
        n = self.rows()
        if self.cached:
            z, targets, v = self.whole()
            order = torch.randperm(n, generator=generator)
            for index in order.tensor_split(steps) if steps <= n else (order[i % n, None] for i in range(steps)):
                yield (z[index], targets[index], None if v is None else v[index]), n / len(index)
            return
        # Streamed rows are shuffled within chunks only, and every row is in exactly one step.
        ends = [round(n * (i + 1) / steps) for i in range(steps)]
        held: list[EncodedExamples] = []
        have, read, step = 0, 0, 0
        for rows in self._large_chunks():
            order = torch.randperm(len(rows), generator=generator)
            while len(order):
                index, order = order[: ends[step] - read], order[ends[step] - read :]
                held.append(rows.take(index))
                have, read = have + len(index), read + len(index)
                if read == ends[step]:
                    yield batch_of(join_rows(held)), n / have
                    held, have, step = [], 0, step + 1

    def _large_chunks(self) -> Iterator[EncodedExamples]:
        """The rows in large chunks, because neighbours in the data are often similar."""
        held: list[EncodedExamples] = []
        for rows in self:
            held.append(rows)
            if sum(rows.x.numel() * rows.x.element_size() for rows in held) >= SHUFFLE_BYTES:
                yield join_rows(held)
                held = []
        if held:
            yield join_rows(held)


def join_rows(chunks: list[EncodedExamples]) -> EncodedExamples:
    """Several chunks as one."""
    rows = concatenate(chunks)
    return EncodedExamples(rows.key, rows.x, rows.y, None if rows.weight is None else rows.weight.to(rows.x))


def row_weights(importance: Tensor | None, weight: Tensor | None) -> Tensor | None:
    """Weights of rows in a sum: the number of examples that each represents, times its own weight; None if all are
    one."""
    if importance is None or weight is None:
        return weight if importance is None else importance
    return importance * weight.to(importance)


def batch_of(rows: EncodedExamples) -> Batch:
    """Rows as a minibatch."""
    return rows.x, rows.y, rows.weight
