"""Examples as a job reads them: with progress, which also stops a job that must end.

Sums over them are added up by the executor (`worker/executors`), in this process or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from core.kprior import Examples
from core.kprior.data.partitioned import PartitionedData
from core.kprior.passes.accumulator import A, Accumulator
from core.ledger.holdout import SampledRows
from core.ledger.passes import Pass
from core.versions.knowledge import position_knows_erased
from worker.attempt import JobAttempt, Outdated, Progress


class Reading(PartitionedData):
    """The examples of a pass."""

    def __init__(self, attempt: JobAttempt, data: Pass | SampledRows, progress: Progress, phrase: str) -> None:
        self.attempt, self.data, self.progress, self.phrase = attempt, data, progress, phrase
        self.executor = attempt.context.executor

    def shards(self) -> Sequence[Reading]:
        return [Reading(self.attempt, part, self.progress, self.phrase) for part in self.data.shards()]

    def rows(self, key: Tensor) -> Examples:
        return self.data.rows(key)

    def __iter__(self) -> Iterator[Examples]:
        for chunk in self.data:
            self.progress(float(chunk.key[-1]) / self.data.at, self.phrase)
            yield chunk

    def is_distributed(self, total: Accumulator) -> bool:
        return self.executor.is_distributed(self, total)

    def accumulate(self, total: A) -> A:
        self.require_nobody_erased()
        return self.executor.reduce(self, total)

    def require_nobody_erased(self) -> None:
        """Raise Outdated if the pass would read somebody who is being erased: its result could not be recorded."""
        with self.attempt.context.database.read() as session:
            if position_knows_erased(session, self.data.model_id, self.data.at):
                raise Outdated
