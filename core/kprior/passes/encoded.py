"""Rows that are encoded once and cached in memory, for solvers that make many passes."""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from core.kprior.data.examples import Data, EncodedExamples, Examples, concatenate
from core.kprior.data.keyed_random import uniform
from core.kprior.model.predictor import Predictor
from core.kprior.model.tree_leaves import Leaves
from core.kprior.passes.accumulator import A, add_shards
from core.kprior.passes.gradient import CHUNK_NUMBERS
from core.kprior.passes.partitioned import PartitionedData, accumulate, shards_of
from core.kprior.passes.row_count import Count

MAX_CACHED_BYTES = 2**30
"""Rows beyond this limit are read and encoded again in every pass."""


class EncodedData(PartitionedData):
    """The features of a GLM's rows in float32, or the slots of their leaves in int32, cached while they fit."""

    def __init__(self, predictor: Predictor, data: Data) -> None:
        self.predictor, self.data = predictor, data
        self.count = 0
        self._kept: list[list[EncodedExamples]] | None = None
        self._exact, self._tried = True, False
        slots = isinstance(predictor.body, Leaves)  # of a tree ensemble, the slots of leaves are cached
        self._width = predictor.encoder.shape[0] if slots else predictor.size // predictor.family.outputs
        self._rows = max(16, CHUNK_NUMBERS // self._width)

    @property
    def exact(self) -> bool:
        """Whether the cached features have full precision."""
        return self._kept is not None and self._exact

    def shards(self) -> Sequence[Data]:
        """The shards of the data, or of the cached features."""
        if not self._tried:
            self._keep()
        return shards_of(self.data) if self._kept is None else self._kept

    def rows(self, key: Tensor) -> Examples:
        """The original examples."""
        if isinstance(self.data, PartitionedData):
            return self.data.rows(key)
        every = [chunk.take(torch.isin(chunk.key, key)) for chunk in self.data]
        found = concatenate(every)
        return found.take(torch.argsort(found.key))

    def accumulate(self, total: A, careful: bool = False) -> A:
        """Sum all shards; a `careful` pass reads the original data if the cached features are less precise."""
        shards = self.shards()
        if self._kept is None or (careful and not self._exact):
            return accumulate(self.data, total)
        return add_shards(shards, total)

    def encoded_chunks(self) -> Iterator[EncodedExamples]:
        """All rows as features, chunk by chunk."""
        for shard in self.shards():
            for chunk in shard:
                if len(chunk):
                    yield self._encode(chunk)[0]

    def count_rows(self) -> int:
        """Number of rows; counting also fills the cache."""
        self.shards()
        if self._kept is None and not self.count:
            total = Count(self.predictor, self.predictor.initial_weights())
            self.count = accumulate(self.data, total).count
        return self.count

    def sample(self, fraction: float, seed: int) -> list[EncodedExamples]:
        """A random fraction of the rows as features, at least one chunk; it depends on the seed alone."""
        chosen = []
        for chunk in self.encoded_chunks():
            chosen_rows = torch.nonzero(uniform(chunk.key, seed) <= fraction)[:, 0]
            if len(chosen_rows):
                chosen.append(chunk.take(chosen_rows))
        return [join(chosen)] if chosen else list(islice(self.encoded_chunks(), 1))

    def _keep(self) -> None:
        self._tried = True
        kept: list[list[EncodedExamples]] = []
        size, self.count = 0, 0
        for shard in shards_of(self.data):
            chunks = []
            for chunk in shard:
                if len(chunk) == 0:
                    continue
                self.count += len(chunk)
                size += len(chunk) * self._width * 4
                if size > MAX_CACHED_BYTES:
                    self.count = 0
                    return
                for some in chunk.chunks(self._rows):
                    features, exact = self._encode(some)
                    self._exact = self._exact and exact
                    chunks.append(features)
            kept.append(chunks)
        self._kept = kept

    def _encode(self, chunk: Examples) -> tuple[EncodedExamples, bool]:
        if isinstance(chunk, EncodedExamples):
            return chunk, True
        self.predictor.check(chunk)
        if isinstance(self.predictor.body, Leaves):
            slots = self.predictor.encode(chunk.x).int()
            return EncodedExamples(chunk.key, slots, chunk.y, self.predictor.weigh(chunk)), True
        phi = self.predictor.features(chunk.x)
        short = phi.float()
        exact = self._exact and bool((short.double() == phi).all())
        return EncodedExamples(chunk.key, short, chunk.y, self.predictor.weigh(chunk)), exact


def join(chunks: list[EncodedExamples]) -> EncodedExamples:
    """The rows of all chunks as one chunk."""
    rows = concatenate(chunks)
    return EncodedExamples(rows.key, rows.x, rows.y, rows.weight)
