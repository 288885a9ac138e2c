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
        """Raise Outdated if the pass would read data of a person being erased: its result could not be recorded."""
        with self.attempt.context.database.read() as session:
            if position_has_erased_examples(session, self.data.model_id, self.data.at):
                raise Outdated
