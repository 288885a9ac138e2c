"""The executor on a Ray cluster: shards of a pass as tasks, which Ray places, retries and ends with the job.

This process is the driver, and only waits: it merges the sums in the ledger's order as they come. Whatever a task
cannot do, for whatever reason, is done here, where its error belongs to the job. Ray ends the process of a driver whose
cluster is gone for a minute: so it is one while a job needs it, and no longer than the cluster answers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
import torch
from torch import Tensor

from core.database import Database
from core.kprior import Cost, Training
from core.kprior.data.codec import Tensors, unpack
from core.kprior.objective.objective import Objective
from core.kprior.passes.accumulator import A, Accumulator, add_chunks
from core.kprior.solvers import Progress, Solution, Watch
from core.settings import Settings
from worker.executors.base import InProcess
from worker.executors.shard import add_shard, describe_pass, sign

if TYPE_CHECKING:
    from worker.reading import Reading
    from worker.versions.snapshot import ModelSnapshot

os.environ.setdefault("RAY_AUTH_MODE", "token")  # who can speak to a cluster can run anything there
import ray  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

log = structlog.get_logger("worker")

READING, MULTIPLYING = 1.5e-6, 1e-10
"""About what a row and a multiplication take, in seconds."""
PORT = 6379
"""Ray's own default."""
SETTINGS = b"\x04"
"""The kind of the frame with which a server of HTTP/2 begins."""
PROBE = 2.0
"""Seconds between two questions whether the cluster is there, and for which an answer is waited for."""
LOST = 20.0
"""Seconds without an answer after which a job goes on alone."""
LEAVE = 30.0
"""Seconds for which a job waits until Ray has taken leave of a cluster."""
LOOK = 0.2
"""Seconds between two looks at what the cluster does."""
SILENCE = 90.0
"""Seconds without any answer after which shards are added up here: a node whose packets are lost, and not its
connections, Ray itself takes for dead after 65, and begins its tasks again minutes later."""
RETRIES = 3
"""How often Ray begins a task again whose process or node was lost."""
ALONE = ", in one process, since Ray is away"


# Here and not for each pass: it is told to the head of the cluster once, and a head that is gone lets nobody go on.
TASK = ray.remote(add_shard)


class OnRay(InProcess):
    """Long passes on a cluster; short ones, and all while it is away, here."""

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
        self.leaving.join(LEAVE)

    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        seconds = len(reading.data.span) * (READING + MULTIPLYING * total.work)
        if seconds <= self.settings.ray_seconds or len(reading.data.shards()) == 1:
            return False
        return self.connect(reading.progress)

    def reduce(self, reading: Reading, total: A) -> A:
        if self.is_distributed(reading, total):
            return self.reduce_by_tasks(reading, total)
        if self.away and not reading.phrase.endswith(ALONE):
            reading.phrase += ALONE
        return super().reduce(reading, total)

    def reduce_by_tasks(self, reading: Reading, total: A) -> A:
        signature = sign(self.settings, self.database, self.device.type)
        request = ray.put(describe_pass(reading.data, total, signature))
        task = TASK.options(max_retries=RETRIES, **self.resources(self.device.type))
        shards = reading.shards()
        spans = [shard.data.span for shard in shards]
        answers = deque(task.remote(request, span.start, span.stop) for span in spans)
        silence = Silence()
        try:
            for shard in shards:
                sums = self.wait_for(answers, reading, len(shards), silence)
                answers.popleft()
                total.merge(add_chunks(shard, total.empty()).sums() if sums is None else sums)
        finally:
            self.cancel(answers)
        return total

    def wait_for(self, answers: deque[Any], reading: Reading, count: int, silence: Silence) -> Tensors | None:
        """The first of the answers; None if the cluster does not have it."""
        try:
            while True:
                if self.is_lost():
                    return None
                done, _ = ray.wait(list(answers), num_returns=len(answers), timeout=0, fetch_local=False)
                reached = count - len(answers) + len(done)
                reading.progress(reached / count, f"{reading.phrase}, shard {reached} of {count}, on Ray")
                if ray.wait([answers[0]], timeout=LOOK)[0]:
                    found = ray.get(answers[0])
                    break
                if silence.seconds(reached) > SILENCE:
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
        alone = (objective, start, training, cost, progress, watch)
        epoch = 6.0 * objective.predictor.size * snapshot.count * MULTIPLYING
        report = progress or (lambda share, phrase: None)
        if objective.predictor.linear or epoch <= self.settings.ray_seconds or not self.connect(report):
            return super().train(snapshot, *alone)
        if self.members() == 0:
            return super().train(snapshot, *alone)
        from worker.executors.ray_training import RayTraining

        look = watch or (lambda passes, w: False)
        return RayTraining(self, objective, start, training, report, look).solve(snapshot, cost)

    def training_device(self) -> str:
        """What networks are trained on: GPUs, where the cluster has some."""
        return "cuda" if self.settings.device != "cpu" and any(of_nodes("GPU")) else "cpu"

    def members(self) -> int:
        """How many processes train one network; none, if this one is as good."""
        wanted = self.settings.ray_processes
        if self.training_device() == "cuda":
            there = int(sum(of_nodes("GPU")))
            return min(there, wanted or there)
        asked = self.resources("cpu")["num_cpus"]
        there = sum(int(processors // asked) for processors in of_nodes("CPU"))  # none has them on two nodes
        return min(there, wanted) if min(there, wanted) > 1 else 0

    def is_lost(self) -> bool:
        """Whether the cluster does not answer any more; then this process is no driver from here on."""
        now = time.monotonic()
        if not self.away and now - self.heard > PROBE:
            if answers_at(self.settings.ray_address):
                self.heard = now
            elif now - self.heard > min(LOST, self.settings.ray_patience):
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
            time.sleep(LOOK)
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
        self.processors = max(of_nodes("CPU"), default=0.0)
        if self.processors < 1 or (self.device.type == "cuda" and max(of_nodes("GPU"), default=0.0) < 1):
            self.leave()
            return "no node has a processor for it"
        self.heard = time.monotonic()
        return ""


class Silence:
    """For how long a cluster has brought nothing new of a pass."""

    def __init__(self) -> None:
        self.reached, self.since = 0, time.monotonic()

    def seconds(self, reached: int) -> float:
        """With so many shards added up, here or there."""
        now = time.monotonic()
        if reached > self.reached:
            self.reached, self.since = reached, now
        return now - self.since


def answers_at(address: str) -> bool:
    """Whether Ray listens there, and is not stuck: its server speaks first, unless it waits for TLS."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    try:
        with socket.create_connection((place.hostname or "", place.port or PORT), timeout=PROBE) as server:
            return os.environ.get("RAY_USE_TLS") == "1" or server.recv(9)[3:4] == SETTINGS
    except OSError:
        return False


def of_nodes(resource: str) -> list[float]:
    """What each node has of a resource."""
    return [float(node["Resources"].get(resource, 0.0)) for node in ray.nodes() if node["Alive"]]
