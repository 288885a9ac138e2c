"""The executor on a Ray cluster: shards of a pass as tasks, which Ray places, retries and ends with the job.

This process is the driver, and only waits: it merges the sums in the ledger's order as they come. Whatever a task
cannot do, for whatever reason, is done here, where its error belongs to the job. Ray ends the process of a driver whose
cluster is gone for a minute: so it is one while a job needs it, and no longer than the cluster answers.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import torch
from torch import Tensor

from core.database import Database
from core.kprior import Cost, Training
from core.kprior.data.codec import Tensors, unpack
from core.kprior.objective.objective import Objective
from core.kprior.passes.accumulator import A, Accumulator, add_chunks
from core.kprior.solvers import Progress, Solution, Solve, Watch, solve
from core.settings import Settings
from worker.executors.base import InProcess
from worker.executors.ray_liveness import PROBE_SECONDS, Silence, answers_at
from worker.executors.shard import add_shard, describe_pass, sign

if TYPE_CHECKING:
    from worker.reading import Reading
    from worker.versions.snapshot import ModelSnapshot

os.environ.setdefault("RAY_AUTH_MODE", "token")  # who can speak to a cluster can run anything there
import ray  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

log = structlog.get_logger("worker")

SECONDS_PER_ROW, SECONDS_PER_PRODUCT = 1.5e-6, 1e-10
"""About what a row and a multiplication take, in seconds."""
LOST_AFTER_SECONDS = 20.0
"""Seconds without an answer after which a job goes on alone."""
LEAVE_SECONDS = 30.0
"""Seconds for which a job waits until Ray has taken leave of a cluster."""
POLL_SECONDS = 0.2
"""Seconds between two looks at what the cluster does."""
SILENCE_SECONDS = 90.0
"""Seconds without any answer after which shards are added up here: a node whose packets are lost, and not its
connections, Ray itself takes for dead after 65, and begins its tasks again minutes later."""
MAX_RETRIES = 3
"""How often Ray begins a task again whose process or node was lost."""
ALONE = ", in one process, since Ray is away"


# Once and not for each pass: the head of the cluster is told of it, and one that is gone lets nobody go on.
TASK = ray.remote(add_shard)


class OnRay(InProcess):
    """Runs long work on a cluster; short work, and all while the cluster is away, in the worker's own process."""

    def __init__(self, settings: Settings, database: Database, device: torch.device) -> None:
        self.settings, self.database, self.device = settings, database, device
        self.away = False
        """Nobody answered for as long as a job waits: its other passes do not wait again."""
        self.heard = 0.0
        """When the cluster last answered."""
        self.processors = 0.0
        """The most that one node has."""
        self.leaving = threading.Thread()

    def close(self) -> None:
        self.away = False
        if self.is_driver():
            self.leave()

    def is_driver(self) -> bool:
        """Whether this process may call the cluster."""
        return ray.is_initialized() and not self.leaving.is_alive()

    def leave(self) -> None:
        """Be no driver any more. Of a head that hangs Ray takes leave only when that is over, and the job goes on."""
        self.leaving = threading.Thread(target=ray.shutdown, daemon=True)
        self.leaving.start()
        self.leaving.join(LEAVE_SECONDS)

    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        seconds = len(reading.data.span) * (SECONDS_PER_ROW + SECONDS_PER_PRODUCT * total.work)
        if seconds <= self.settings.ray_seconds or len(reading.data.shards()) == 1:
            return False
        return self.connect(reading.progress)

    def reduce(self, reading: Reading, total: A) -> A:
        if self.is_distributed(reading, total):
            return self.reduce_by_tasks(reading, total)
        self.note_alone(reading)
        return super().reduce(reading, total)

    def note_alone(self, reading: Reading) -> None:
        """Let the job's message say, while the cluster is away, that one process makes the pass."""
        if self.away and not reading.phrase.endswith(ALONE):
            reading.phrase += ALONE

    def reduce_by_tasks(self, reading: Reading, total: A) -> A:
        signature = sign(self.settings, self.database, self.device.type)
        request = ray.put(describe_pass(reading.data, total, signature))
        task = TASK.options(max_retries=MAX_RETRIES, **self.resources(self.device.type))
        shards = reading.shards()
        spans = [shard.data.span for shard in shards]
        answers = deque(task.remote(request, span.start, span.stop) for span in spans)
        silence = Silence()
        try:
            for shard in shards:
                sums = self.wait_for_first(answers, reading, len(shards), silence)
                answers.popleft()
                if sums is None:
                    self.note_alone(shard)
                    sums = add_chunks(shard, total.empty()).sums()
                total.merge(sums)
        finally:
            self.cancel(answers)
        return total

    def wait_for_first(self, answers: deque[Any], reading: Reading, count: int, silence: Silence) -> Tensors | None:
        """The first of the answers; None if the cluster does not have it."""
        try:
            while True:
                if self.is_lost():
                    return None
                done, _ = ray.wait(list(answers), num_returns=len(answers), timeout=0, fetch_local=False)
                reached = count - len(answers) + len(done)
                reading.progress(reached / count, f"{reading.phrase}, shard {reached} of {count}, on Ray")
                if ray.wait([answers[0]], timeout=POLL_SECONDS)[0]:
                    found = ray.get(answers[0])
                    break
                if silence.seconds(reached) > SILENCE_SECONDS:
                    log.warning("a shard is added up here, since Ray is silent", job=reading.attempt.job_id)
                    self.cancel([answers[0]])
                    silence.reached += 1  # by this one, which is no news of the cluster
                    return None
        except RayError as error:
            log.warning("a shard is added up here, since Ray could not", job=reading.attempt.job_id, exc_info=error)
            return None
        if found is None:
            log.warning(
                "a shard is added up here: a node of Ray has another version, processor, secret or database",
                job=reading.attempt.job_id,
            )
            return None
        return unpack(found)[1]

    def cancel(self, answers: Iterable[Any]) -> None:
        """End what still runs, at once: it has nothing to clean up."""
        for answer in answers if self.is_driver() else ():
            with suppress(RayError, ValueError):
                ray.cancel(answer, force=True)

    def solver_for(self, snapshot: ModelSnapshot) -> Solve:
        return partial(self.train, snapshot)

    def train(
        self,
        snapshot: ModelSnapshot,
        objective: Objective,
        start: Tensor,
        training: Training,
        cost: Cost,
        progress: Progress | None,
        watch: Watch | None,
    ) -> Solution:
        """Train a network by processes of the cluster, if that is worth it; else here, as `solve` does."""
        report = progress or (lambda fraction, phrase: None)
        epoch_seconds = 6.0 * objective.predictor.size * snapshot.count * SECONDS_PER_PRODUCT
        is_long = not objective.predictor.linear and epoch_seconds > self.settings.ray_seconds
        if not is_long or not self.connect(report) or self.members() == 0:
            here = self.say_alone(report) if is_long and self.away else progress
            return solve(objective, start, training, cost, here, watch)
        from worker.executors.ray_training import RayTraining

        must_stop = watch or (lambda passes, w: False)
        return RayTraining(self, objective, start, training, report, must_stop).solve(snapshot, cost)

    def say_alone(self, progress: Progress) -> Progress:
        """Progress of a training that says, while the cluster is away, that one process does the work."""
        return lambda fraction, phrase: progress(fraction, phrase + ALONE if self.away else phrase)

    def training_device(self) -> str:
        """What networks are trained on: GPUs, where the cluster has some."""
        return "cuda" if self.settings.device != "cpu" and any(resource_by_node("GPU")) else "cpu"

    def members(self) -> int:
        """How many processes train one network; none, if this one is as good."""
        wanted = self.settings.ray_processes
        if self.training_device() == "cuda":
            there = int(sum(resource_by_node("GPU")))
            return min(there, wanted or there)
        asked = self.resources("cpu")["num_cpus"]
        there = sum(int(processors // asked) for processors in resource_by_node("CPU"))  # none has them on two nodes
        return min(there, wanted) if min(there, wanted) > 1 else 0

    def is_lost(self) -> bool:
        """Whether the cluster does not answer any more; then this process is no driver from here on."""
        now = time.monotonic()
        if not self.away and now - self.heard > PROBE_SECONDS:
            if answers_at(self.settings.ray_address):
                self.heard = now
            elif now - self.heard > min(LOST_AFTER_SECONDS, self.settings.ray_patience):
                log.warning("a job goes on without Ray", address=self.settings.ray_address)
                self.away = True
                self.leave()
        return self.away

    def resources(self, device: str) -> dict[str, float]:
        """What a process asks of a node."""
        if device == "cuda":
            return {"num_cpus": 0, "num_gpus": 1}  # an actor that names no CPUs would ask for one
        return {"num_cpus": min(torch.get_num_threads(), self.processors)}

    def connect(self, progress: Progress) -> bool:
        """Whether there is a cluster; waits for one that does not answer, once in a job."""
        end = time.monotonic() + self.settings.ray_patience
        while not self.away and not self.is_driver():
            problem = self.try_to_connect()
            if not problem:
                return True
            if time.monotonic() >= end:
                log.warning("a job runs without Ray", address=self.settings.ray_address, reason=problem)
                self.away = True
            progress(0.0, f"waiting for Ray at {self.settings.ray_address}: {problem}")
            time.sleep(POLL_SECONDS)
        return not self.away

    def try_to_connect(self) -> str:
        """What is in the way; nothing once this process is a driver of the cluster."""
        address = self.settings.ray_address
        if not answers_at(address):  # Ray itself takes long to find out, and then logs pages
            return "nobody answers"
        if self.leaving.is_alive():
            return "the connection before is not closed yet"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, namespace="amend", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of many kinds: another version, a wrong token, no node on this host
            # its words are of clusters, not of people's data
            log.warning(
                "Ray refused this worker", address=address, reason=str(error.__cause__ or error), exc_info=error
            )
            return type(error).__name__
        finally:
            with suppress(ValueError):  # of a thread
                signal.signal(signal.SIGTERM, handler)  # the worker's own, which hands jobs back
        self.processors = max(resource_by_node("CPU"), default=0.0)
        if self.processors < 1 or (self.device.type == "cuda" and max(resource_by_node("GPU"), default=0.0) < 1):
            self.leave()
            return "no node has a processor for it"
        self.heard = time.monotonic()
        return ""


def resource_by_node(resource: str) -> list[float]:
    """What each node has of a resource."""
    return [float(node["Resources"].get(resource, 0.0)) for node in ray.nodes() if node["Alive"]]
