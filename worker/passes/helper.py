"""Helping a job that runs elsewhere with its pass over the examples: `shared.py` is the other side."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import structlog
import torch

from core.errors import AmendError
from core.jobs import shards
from core.jobs.leases import Lost
from core.jobs.queries import any_can_begin
from core.jobs.queue import QUEUES
from core.kprior import Examples
from core.kprior.data.codec import pack, unpack
from core.kprior.passes.accumulator import Accumulator, accumulator_of, add_chunks
from core.ledger import passes
from core.ledger.digest import Digest
from core.tables.jobs import Shard
from core.versions import history, store_identity
from core.versions.orphans import put_noted, remove_noted
from worker.context import Context
from worker.heartbeat import HandedBack, Heartbeat
from worker.passes.shared import LOOK, PassRequest, RowCache, numeric_tools

log = structlog.get_logger("worker")

LINGER = 1.0
"""Seconds for which a helper waits for the next pass of the same job, whose rows it has at hand."""


def help_out(context: Context, job_id: str) -> None:
    """Add up shards of a job's passes, as long as there are some and no job waits for this process."""
    store_identity.check(context.store, context.store_id)
    helper, last = Helper(context, job_id), time.monotonic()
    served = context.settings.queue_names or QUEUES
    while not context.stopping():
        with context.database.read() as session:
            if any_can_begin(session, served):
                return
        shard = helper.take()
        if shard is not None:
            if not helper.add_up(shard):
                return
            last = time.monotonic()
        elif not helper.cache.chunks or time.monotonic() - last > LINGER:
            return
        else:
            time.sleep(LOOK)


class Helper:
    """One process that helps one job."""

    def __init__(self, context: Context, job_id: str) -> None:
        self.context, self.job_id = context, job_id
        self.database, self.store = context.database, context.store
        self.owner = f"{context.name}:{uuid.uuid4().hex[:8]}"
        self.cache = RowCache()
        self._file = ""
        self._request: tuple[PassRequest, Accumulator] | None = None

    def take(self) -> Shard | None:
        """A shard that nobody has: if it can be, one whose rows are at hand."""
        known: set[int] = set()
        if self._request is not None:
            asked = self._request[0]
            places = [(asked["model"], asked["at"], range(*span)) for span in asked["spans"]]
            known = {number for number, place in enumerate(places) if place in self.cache.chunks}
        return shards.take(self.database, self.job_id, self.owner, self.context.settings.lease_seconds, known)

    def add_up(self, shard: Shard) -> bool:
        """Add up a shard and leave its sums in the store; False if that came to nothing, and it is time to go."""
        try:
            with Heartbeat(self.context, self.job_id, lambda *_: self.extend(shard)) as heartbeat:
                data = self.sums(shard, heartbeat)
            folder = history.folder_of(self.request(shard)[0]["model"])
            stored = put_noted(self.database, self.store, folder, data, shard.asker)
            if shards.finish(self.database, shard, self.owner, stored):
                return True
            remove_noted(self.database, self.store, [stored.file])
            return False
        except BaseException as error:
            with suppress(AmendError):
                shards.give_back(self.database, shard, self.owner)
            if not isinstance(error, Exception):
                raise  # a signal to all processes of the worker
            if not isinstance(error, (Lost, HandedBack)):
                # whatever it is, the asker will come upon it, and has a job to fail
                log.warning("a shard could not be added up here", job=self.job_id, exc_info=error)
            return False

    def extend(self, shard: Shard) -> None:
        shards.extend(self.database, shard, self.owner, self.context.settings.lease_seconds)

    def sums(self, shard: Shard, heartbeat: Heartbeat) -> bytes:
        header, total = self.request(shard)
        if header.get("tools") != numeric_tools(self.context):
            raise Lost  # a worker of another kind or version
        span = range(*header["spans"][shard.number])
        part = passes.read_in_force(self.database, header["model"], header["spec"], header["at"]).narrow(span)
        one, threads = total.empty(), torch.get_num_threads()
        torch.set_num_threads(header["threads"])  # another number would add up in another order

        def watched_chunks() -> Iterator[Examples]:
            for chunk in self.cache.read(part):
                heartbeat(0.0, "")
                yield chunk

        try:
            add_chunks(watched_chunks(), one)
        finally:
            torch.set_num_threads(threads)
        return pack({}, one.sums())

    def request(self, shard: Shard) -> tuple[PassRequest, Accumulator]:
        """What is to be added up: the same for all shards of a pass."""
        if self._request is None or self._file != shard.question:
            header, tensors = unpack(self.store.get(shard.question))
            asked = cast(PassRequest, header)
            self._file = shard.question
            brought = Digest(self.context.settings.secret)
            self._request = asked, accumulator_of(asked["asked"], tensors, self.context.device, brought)
        return self._request
