"""Sums of losses over rows: what an objective is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from core.kprior.data.examples import Data, EncodedExamples, chunks_of, concatenate, require_rereadable
from core.kprior.data.partitioned import PartitionedData, shards_of
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import Accumulator, add_shards
from core.kprior.passes.loss import Loss
from core.kprior.passes.row_count import Count

CACHE_BYTES = 2**28
"""Encoded inputs up to this size are kept between passes of one solve; beyond, every pass encodes anew."""
SHUFFLE_BYTES = CACHE_BYTES // 8
"""Rows beyond that are shuffled within chunks of this size."""

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
        scale: float = 1.0,
        temperature: float = 1.0,
        mixer: InputMixer | None = None,
    ) -> None:
        """A term over some rows.

        Parameters
        ----------
        predictor
            The model whose weights are sought.
        data
            The rows, readable more than once.
        targets
            (n, K), in the order of `data`, in the place of its labels.
        weight
            (n,), in the order of `data`: how many rows each stands for; without it, one. Each counts as often as that,
            times its own weight.
        past
            Whether the rows are past data, whose passes are counted.
        scale
            What the whole term is multiplied by.
        temperature
            T: outputs are divided by it and the loss is multiplied by T^2 (paper, Eq. 27); targets are expected at it.
        mixer
            Labels mixed inputs afresh in every minibatch.
        """
        self.predictor, self._data, self._targets, self._weight = predictor, require_rereadable(data), targets, weight
        self.past, self.scale, self.temperature, self.mixer = past, scale, temperature, mixer
        self._cache: list[list[EncodedExamples]] | None = None
        self.count: int | None = None

    @classmethod
    def of_features(cls, predictor: Predictor, phi: Tensor, targets: Tensor, weight: Tensor | None = None) -> Term:
        """A GLM's rows that are encoded already."""
        term = cls(predictor, [], targets)
        term._cache, term.count = [[EncodedExamples(torch.arange(len(phi)), phi, targets, weight)]], len(phi)
        return term

    def shards(self) -> Sequence[Iterable[EncodedExamples]]:
        """The rows, encoded, in the shards of their data; to be read in order, as they are kept on the way."""
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
                if size > CACHE_BYTES and self.mixer is None:
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
        """Value, gradient and (GLM, on demand) Hessian of all rows, before the scale.

        Rows that are cached are added up shard by shard, too: who adds them up must not matter.
        """
        total = Loss(self.predictor, w, with_hessian=hessian, temperature=self.temperature)
        if (data := self._distributed(total)) is not None:
            self.count = data.accumulate(total).count
            return total
        return add_shards(self.shards(), total)

    def _distributed(self, total: Accumulator) -> PartitionedData | None:
        """The data, if its rows are to be added up as they are, and several processes would do so."""
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
        """How many examples an epoch of this term has: mixed inputs are as many as the past they stand for."""
        if self.mixer is not None and self._weight is not None:
            return max(1, round(float(self._weight.sum())))
        return self.rows()

    def rows(self) -> int:
        """How many rows there are; a pass over the data if none was made yet."""
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
        """The term's value on some of its rows, given their outputs."""
        T = self.temperature
        loss = self.predictor.family.loss(targets, f / T) * (T * T)
        return self.scale * (loss if weight is None else loss * weight).sum()

    def minibatches(self, steps: int, size: int | None, generator: torch.Generator) -> Iterator[tuple[Batch, float]]:
        """`steps` batches that cover the rows once, each with the factor that makes its sum unbiased.

        Mixed inputs are new in every step, however few rows they are mixed from: of them each batch has `size`.
        """
        n = self.rows()
        if self.cached:
            z, targets, v = self.whole()
            if self.mixer is not None:
                for _ in range(steps):
                    yield self.mixer.mix(z, v, size or n, self.temperature, generator)
                return
            order = torch.randperm(n, generator=generator)
            for index in order.tensor_split(steps) if steps <= n else (order[i % n, None] for i in range(steps)):
                yield (z[index], targets[index], None if v is None else v[index]), n / len(index)
            return
        # streamed: shuffled within chunks only, and cut so that every row is in one of the steps
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
        """The rows, many chunks at a time: neighbours in the data are often alike."""
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
    """What rows count in a sum: how many each stands for, times its own weight; None: one, all of them."""
    if importance is None or weight is None:
        return weight if importance is None else importance
    return importance * weight.to(importance)


def batch_of(rows: EncodedExamples) -> Batch:
    """Rows as a minibatch."""
    return rows.x, rows.y, rows.weight


@dataclass(frozen=True)
class InputMixer:
    """The old model, kept during a job so that it can be asked anywhere."""

    predictor: Predictor
    w: Tensor
    input_root: Tensor | None = None
    """A root of the inputs' covariance, where it is known."""

    def mix(
        self, pool: Tensor, weight: Tensor | None, size: int, temperature: float, generator: torch.Generator
    ) -> tuple[Batch, float]:
        """`size` inputs x = a u_i + (1 - a) u_j + noise, a uniform, i and j drawn by weight, old labels."""
        odds = torch.ones(len(pool)) if weight is None else weight.cpu()
        i, j = torch.multinomial(odds, 2 * size, replacement=True, generator=generator).view(2, size)
        a = torch.rand(size, generator=generator).to(pool).reshape(-1, *[1] * (pool.ndim - 1))
        mixed = a * pool[i] + (1 - a) * pool[j]
        if self.input_root is not None:
            noise = torch.randn(size, len(self.input_root), generator=generator).to(pool)
            mixed = mixed + (noise @ self.input_root.T.to(pool) * 3**-0.5).view_as(mixed)
        with torch.no_grad():
            f = self.predictor.outputs_of_encoded(self.w, mixed.to(self.w)).to(mixed)
        targets = self.predictor.family.mean(f / temperature)
        return (mixed, targets, None), float(odds.sum()) / size
