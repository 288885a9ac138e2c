"""Examples as a job reads them: reading reports progress, which also stops a job that must end.

The executor (`worker/executors`) computes sums over them, in this process or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from core.kprior import Examples
from core.kprior.passes.accumulator import A, Accumulator
from core.kprior.passes.partitioned import PartitionedData
from core.ledger.holdout_sample import SampledRows
from core.ledger.passes import Pass
from core.versions.erased_examples import position_has_erased_examples
from worker.job_attempt import JobAttempt, Outdated, Progress

MAX_KEPT_BYTES = 256 * 2**20
"""Memory for examples that several passes read: a million rows of 64 single-precision numbers."""


class KeptShards:
    """Shards in memory for the next passes over the same examples, as many as fit into MAX_KEPT_BYTES."""

    def __init__(self) -> None:
        self.shards: dict[range, list[Examples]] = {}
        self.size = 0

    def keep(self, span: range, chunks: list[Examples]) -> None:
        tensors = [value for chunk in chunks for value in vars(chunk).values() if isinstance(value, Tensor)]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self.size + size <= MAX_KEPT_BYTES:
            self.shards[span], self.size = chunks, self.size + size

    @property
    def is_full(self) -> bool:
        """Whether less space is left than a shard takes on average, so that no other needs to be collected."""
        return bool(self.shards) and self.size * (1 + 1 / len(self.shards)) > MAX_KEPT_BYTES


class Reading(PartitionedData):
    """The examples of a pass, or of several passes that keep examples in memory (`kept`)."""

    def __init__(
        self,
        attempt: JobAttempt,
        data: Pass | SampledRows,
        progress: Progress,
        phrase: str,
        kept: KeptShards | None = None,
    ) -> None:
        self.attempt, self.data, self.progress, self.phrase, self.kept = attempt, data, progress, phrase, kept
        self.executor = attempt.context.executor

    def shards(self) -> Sequence[Reading]:
        return [Reading(self.attempt, part, self.progress, self.phrase, self.kept) for part in self.data.shards()]

    def head(self, count: int) -> Examples | None:
        return self.data.head(count)

    def rows(self, key: Tensor) -> Examples:
        return self.data.rows(key)

    def __iter__(self) -> Iterator[Examples]:
        kept, span = self.kept, self.data.span
        known = None if kept is None else kept.shards.get(span)
        collected: list[Examples] = []
        collects = kept is not None and known is None and not kept.is_full
        for chunk in self.data if known is None else known:
            self.progress(float(chunk.key[-1]) / self.data.at, self.phrase)
            if collects:
                collected.append(chunk)
            yield chunk
        if kept is not None and collects:
            kept.keep(span, collected)

    def is_distributed(self, total: Accumulator) -> bool:
        return self.executor.is_distributed(self, total)

    def accumulate(self, total: A) -> A:
        self.require_nobody_erased()
        return self.executor.reduce(self, total)

    def require_nobody_erased(self) -> None:
        """Raise Outdated if the pass would read data of a person being erased: its result could not be recorded."""
        with self.attempt.context.database.read() as session:
            data = self.data
            if position_has_erased_examples(session, data.model_id, data.at, data.removals_position):
                raise Outdated
