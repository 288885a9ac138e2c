"""The examples as a job reads them: it tells how far it is, stops when told to, and shares a long pass with others.

Who helps is a matter of luck; what comes of it is not: stretches are the ledger's, each is added up from zero, and the
sums are merged in their order (`core/kprior/passes/accumulator.py`). The asker, who runs the job, never just waits
while a stretch is open, so a pass needs nobody else to end. `helping.py` is the other side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version

import structlog
import torch
from sqlalchemy import func, select
from torch import Tensor

from core.database import now
from core.errors import AmendError, NotFound, Unavailable
from core.jobs import stretches
from core.kprior import Data, Examples
from core.kprior.data.codec import Tensors, pack, unpack
from core.kprior.data.partitioned import PartitionedData
from core.kprior.passes.accumulator import A, Accumulator, add_chunks, add_shards, config_of
from core.ledger.passes import Pass
from core.tables.jobs import Stretch, Worker
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
KEPT_BYTES = 2**28


def tools(context: Context) -> dict[str, str]:
    """With what sums are added up: others would give other bits, or not know the question."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return {"amend": version("amend"), "torch": torch.__version__, "device": context.device.type, "cpu": cpu}


class Kept:
    """Rows of stretches that were read once, as far as they fit: a job's next pass is over the same rows.

    Unless somebody took it over at another position: what is in force in a stretch depends on that.
    """

    def __init__(self) -> None:
        self.chunks: dict[tuple[int, int, range], list[Examples]] = {}
        """By model, position and stretch."""
        self._size = 0

    def over(self, part: Pass) -> Iterator[Examples]:
        """The rows of a stretch, from here or from the ledger."""
        place = part.model_id, part.values["at"], part.span
        if place in self.chunks:
            yield from self.chunks[place]
            return
        chunks, size = [], self._size
        for chunk in part:
            yield chunk
            size += chunk.x.numel() * chunk.x.element_size()
            if size <= KEPT_BYTES:
                chunks.append(chunk)
        if size <= KEPT_BYTES:
            self.chunks[place], self._size = chunks, size


class Reading(PartitionedData):
    """The examples of a pass."""

    def __init__(self, attempt: JobAttempt, data: Pass, progress: Progress, phrase: str) -> None:
        self.attempt, self.data, self.progress, self.phrase = attempt, data, progress, phrase
        self.kept = Kept()
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
            alive = Worker.seen_at > now() - timedelta(seconds=context.settings.worker_silence)
            workers = session.scalar(select(func.count()).select_from(Worker).where(alive)) or 0
        return workers * context.settings.worker_processes - 1

    def accumulate(self, total: A) -> A:
        self.require_nobody_erased()
        if not self.has_helpers(total):
            return add_shards(self.shards(), total)
        Asker(self, total).add_parts()
        return total


class Asker:
    """One pass that is shared."""

    def __init__(self, reading: Reading, total: Accumulator) -> None:
        self.reading, self.total, self.attempt = reading, total, reading.attempt
        self.database, self.store = self.attempt.context.database, self.attempt.context.store
        self.parts = reading.data.shards()
        self.own: dict[int, Tensors] = {}
        """Sums of stretches that were added up here, until it is their turn."""
        self.merged, self.left = 0, len(self.parts)
        self.waiting: tuple[int, float] | None = None
        """For which stretch of another's there is nothing to do but wait, and since when."""

    def add_parts(self) -> None:
        folder = history.folder_of(self.attempt.model_id)
        question = put_noted(self.database, self.store, folder, self.question(), self.attempt.owner)
        try:
            stretches.note(self.database, self.attempt.job_id, self.attempt.owner, question, len(self.parts))
            while self.merged < len(self.parts):
                self.go_on()
        finally:
            with suppress(AmendError, OSError):  # what cannot be deleted now is litter, and swept away later
                files = stretches.strike(self.database, self.attempt.job_id, self.attempt.owner)
                remove_noted(self.database, self.store, [question.file, *files])

    def question(self) -> bytes:
        data = self.reading.data
        asked, tensors = config_of(self.total)
        spans = [[part.span.start, part.span.stop] for part in self.parts]
        where = {"model": data.model_id, "spec": data.spec, "at": data.values["at"], "spans": spans}
        how = {"tools": tools(self.attempt.context), "threads": torch.get_num_threads()}
        return pack({**where, **how, "asked": asked}, tensors)

    def go_on(self) -> None:
        """Add up a stretch, if one is left, and merge what is there by now."""
        self.call()
        number = stretches.take_own(self.database, self.attempt.job_id, self.attempt.owner)
        if number is not None:
            self.own[number] = self.sums(number)
        found = stretches.listed(self.database, self.attempt.job_id, self.attempt.owner)
        self.left = sum(stretch.owner is None for stretch in found.values())
        before = self.merged
        while self.merged < len(self.parts) and (sums := self.ready(found)) is not None:
            self.total.merge(sums)
            self.merged += 1
        self.tell(found)
        if number is None and self.merged == before:
            time.sleep(LOOK)

    def ready(self, found: dict[int, Stretch]) -> Tensors | None:
        """The sums of the stretch whose turn it is; None while somebody is at it."""
        if self.merged in self.own:
            return self.own.pop(self.merged)
        stretch = found.get(self.merged)
        if stretch is None:  # struck off: this worker was thought lost for a while
            return self.sums(self.merged)
        if stretch.file is None:
            return self.sums(self.merged) if self.tired(stretch) else None
        try:
            return unpack(self.store.get(stretch.file, stretch.sha256))[1]
        except (NotFound, Unavailable) as error:
            log.warning("the sums of a helper are gone or damaged", job=self.attempt.job_id, exc_info=error)
            return self.sums(self.merged)

    def tired(self, stretch: Stretch) -> bool:
        """Whether a helper, who may hang and still show signs of life, was waited for long enough to do it here."""
        if self.waiting is None or self.waiting[0] != stretch.number or self.left:
            self.waiting = stretch.number, time.monotonic()
        return time.monotonic() - self.waiting[1] > PATIENCE

    def sums(self, number: int) -> Tensors:
        """Add up a stretch here."""
        one = self.total.empty()

        def watched() -> Iterator[Examples]:
            for chunk in self.reading.kept.over(self.parts[number]):
                self.reading.progress(self.merged / len(self.parts), self.reading.phrase)
                yield chunk

        return add_chunks(watched(), one).sums()

    def tell(self, found: dict[int, Stretch]) -> None:
        self.reading.helpers |= {stretch.owner for stretch in found.values() if stretch.owner} - {self.attempt.owner}
        workers = 1 + len(self.reading.helpers)
        count = f"stretch {self.merged} of {len(self.parts)}, {workers} worker{'s' if workers > 1 else ''}"
        self.reading.progress(self.merged / len(self.parts), f"{self.reading.phrase}, {count}")

    def call(self) -> None:
        """Have those told who do not help yet, now and again while there is something to do."""
        if self.left == 0 or time.monotonic() - self.reading.called < PATIENCE:
            return
        self.reading.called = time.monotonic()
        missing = min(self.reading.others(), self.left - 1) - len(self.reading.helpers)
        self.reading.helpers = set()
        if missing > 0:
            self.attempt.context.call_for_help(self.attempt.job_id, self.attempt.queue, missing)
