"""The examples as a job reads them: it tells how far it is, stops when told to, and shares a long pass with others.

Who helps is a matter of luck; what comes of it is not: shards are the ledger's, each is added up from zero, and the
sums are merged in their order (`core/kprior/passes/accumulator.py`). The asker, who runs the job, never just waits
while a shard is open, so a pass needs nobody else to end. `helper.py` is the other side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TypedDict

import structlog
import torch
from torch import Tensor

from core.database import now
from core.errors import AmendError, NotFound, Unavailable
from core.jobs import shards
from core.jobs.queries import count_workers
from core.kprior import Data, Examples
from core.kprior.data.codec import Tensors, pack, unpack
from core.kprior.data.partitioned import PartitionedData
from core.kprior.model.spec import Spec
from core.kprior.passes.accumulator import A, Accumulator, add_chunks, add_shards, config_of
from core.ledger.passes import Pass
from core.tables.jobs import Shard
from core.versions import history
from core.versions.knowledge import position_knows_erased
from core.versions.orphans import put_noted, remove_noted
from worker.attempt import JobAttempt, Outdated, Progress
from worker.context import PATIENCE, Context

log = structlog.get_logger("worker")

READING, MULTIPLYING = 1.5e-6, 1e-10
"""About what a row and a multiplication take, in seconds."""
LOOK = 0.03
"""Seconds between two looks at what others do."""
CACHED_BYTES = 2**28


def numeric_tools(context: Context) -> dict[str, str]:
    """With what sums are added up: others would give other bits, or not know the question."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return {"amend": version("amend"), "torch": torch.__version__, "device": context.device.type, "cpu": cpu}


class PassRequest(TypedDict):
    """What is asked of helpers: which rows to read, and what to add up."""

    model: int
    spec: Spec
    at: int
    spans: list[tuple[int, int]]
    """The positions of each shard."""
    tools: dict[str, str]
    threads: int
    asked: dict[str, Any]
    """The config of the accumulator."""


class RowCache:
    """Rows of shards that were read once, as far as they fit: a job's next pass is over the same rows.

    Unless somebody took it over at another position: what is in force in a shard depends on that.
    """

    def __init__(self) -> None:
        self.chunks: dict[tuple[int, int, range], list[Examples]] = {}
        """By model, position and shard."""
        self._size = 0

    def read(self, part: Pass) -> Iterator[Examples]:
        """The rows of a shard, from here or from the ledger."""
        place = part.model_id, part.values["at"], part.span
        if place in self.chunks:
            yield from self.chunks[place]
            return
        chunks, size = [], self._size
        for chunk in part:
            yield chunk
            size += chunk.x.numel() * chunk.x.element_size()
            if size <= CACHED_BYTES:
                chunks.append(chunk)
        if size <= CACHED_BYTES:
            self.chunks[place], self._size = chunks, size


class Reading(PartitionedData):
    """The examples of a pass."""

    def __init__(self, attempt: JobAttempt, data: Pass, progress: Progress, phrase: str) -> None:
        self.attempt, self.data, self.progress, self.phrase = attempt, data, progress, phrase
        self.cache = RowCache()
        self.helpers: set[str] = set()
        """Who helped with the last pass, and will be waiting for the next one."""
        self.called = -PATIENCE
        """When others were last called for help."""

    def shards(self) -> Sequence[Data]:
        return [Reading(self.attempt, part, self.progress, self.phrase) for part in self.data.shards()]

    def rows(self, key: Tensor) -> Examples:
        return self.data.rows(key)

    def __iter__(self) -> Iterator[Examples]:
        for chunk in self.data:
            self.progress(float(chunk.key[-1]) / self.data.values["at"], self.phrase)
            yield chunk

    def has_helpers(self, total: Accumulator) -> bool:
        seconds = len(self.data.span) * (READING + MULTIPLYING * total.work)
        enough = seconds > self.attempt.context.settings.share_seconds
        return enough and len(self.data.shards()) > 1 and self.others() > 0

    def require_nobody_erased(self) -> None:
        """Outdated if the pass would read somebody who is being erased: what comes of it could not be recorded."""
        with self.attempt.context.database.read() as session:
            if position_knows_erased(session, self.data.model_id, self.data.values["at"]):
                raise Outdated

    def others(self) -> int:
        """How many processes of workers there are besides this one."""
        context = self.attempt.context
        with context.database.read() as session:
            workers = count_workers(session, now() - timedelta(seconds=context.settings.worker_silence))
        return workers * context.settings.worker_processes - 1

    def accumulate(self, total: A) -> A:
        self.require_nobody_erased()
        if not self.has_helpers(total):
            return add_shards(self.shards(), total)
        SharedPass(self, total).run()
        return total


class SharedPass:
    """One pass that is shared."""

    def __init__(self, reading: Reading, total: Accumulator) -> None:
        self.reading, self.total, self.attempt = reading, total, reading.attempt
        self.database, self.store = self.attempt.context.database, self.attempt.context.store
        self.parts = reading.data.shards()
        self.own: dict[int, Tensors] = {}
        """Sums of shards that were added up here, until it is their turn."""
        self.merged, self.left = 0, len(self.parts)
        self.waiting: tuple[int, float] | None = None
        """For which shard of another's there is nothing to do but wait, and since when."""

    def run(self) -> None:
        folder = history.folder_of(self.attempt.model_id)
        question = put_noted(self.database, self.store, folder, self.request(), self.attempt.owner)
        try:
            shards.create(self.database, self.attempt.job_id, self.attempt.owner, question, len(self.parts))
            while self.merged < len(self.parts):
                self.step()
        finally:
            with suppress(AmendError, OSError):  # what cannot be deleted now is an orphan, and swept away later
                files = shards.delete_pass(self.database, self.attempt.job_id, self.attempt.owner)
                remove_noted(self.database, self.store, [question.file, *files])

    def request(self) -> bytes:
        """What is asked of helpers, as a file."""
        data = self.reading.data
        config, tensors = config_of(self.total)
        request: PassRequest = {
            "model": data.model_id,
            "spec": data.spec,
            "at": data.values["at"],
            "spans": [(part.span.start, part.span.stop) for part in self.parts],
            "tools": numeric_tools(self.attempt.context),
            "threads": torch.get_num_threads(),
            "asked": config,
        }
        return pack({**request}, tensors)

    def step(self) -> None:
        """Add up a shard, if one is left, and merge what is there by now."""
        self.call_helpers()
        number = shards.take_own(self.database, self.attempt.job_id, self.attempt.owner)
        if number is not None:
            self.own[number] = self.sums(number)
        found = shards.by_number(self.database, self.attempt.job_id, self.attempt.owner)
        self.left = sum(shard.owner is None for shard in found.values())
        before = self.merged
        while self.merged < len(self.parts) and (sums := self.next_sums(found)) is not None:
            self.total.merge(sums)
            self.merged += 1
        self.report(found)
        if number is None and self.merged == before:
            time.sleep(LOOK)

    def next_sums(self, found: dict[int, Shard]) -> Tensors | None:
        """The sums of the shard whose turn it is; None while somebody is at it."""
        if self.merged in self.own:
            return self.own.pop(self.merged)
        shard = found.get(self.merged)
        if shard is None:  # struck off: this worker was thought lost for a while
            return self.sums(self.merged)
        if shard.file is None:
            return self.sums(self.merged) if self.is_late(shard) else None
        try:
            return unpack(self.store.get(shard.file, shard.sha256))[1]
        except (NotFound, Unavailable) as error:
            log.warning("the sums of a helper are gone or damaged", job=self.attempt.job_id, exc_info=error)
            return self.sums(self.merged)

    def is_late(self, shard: Shard) -> bool:
        """Whether a helper, who may hang and still show signs of life, was waited for long enough to do it here."""
        if self.waiting is None or self.waiting[0] != shard.number or self.left:
            self.waiting = shard.number, time.monotonic()
        return time.monotonic() - self.waiting[1] > PATIENCE

    def sums(self, number: int) -> Tensors:
        """Add up a shard here."""
        one = self.total.empty()

        def watched_chunks() -> Iterator[Examples]:
            for chunk in self.reading.cache.read(self.parts[number]):
                self.reading.progress(self.merged / len(self.parts), self.reading.phrase)
                yield chunk

        return add_chunks(watched_chunks(), one).sums()

    def report(self, found: dict[int, Shard]) -> None:
        self.reading.helpers |= {shard.owner for shard in found.values() if shard.owner} - {self.attempt.owner}
        workers = 1 + len(self.reading.helpers)
        count = f"shard {self.merged} of {len(self.parts)}, {workers} worker{'s' if workers > 1 else ''}"
        self.reading.progress(self.merged / len(self.parts), f"{self.reading.phrase}, {count}")

    def call_helpers(self) -> None:
        """Have those told who do not help yet, now and again while there is something to do."""
        if self.left == 0 or time.monotonic() - self.reading.called < PATIENCE:
            return
        self.reading.called = time.monotonic()
        missing = min(self.reading.others(), self.left - 1) - len(self.reading.helpers)
        self.reading.helpers = set()
        if missing > 0:
            self.attempt.context.call_for_help(self.attempt.job_id, self.attempt.queue, missing)
