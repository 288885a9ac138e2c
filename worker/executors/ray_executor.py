"""The executor on a Ray cluster: shards of a pass are tasks, which Ray places, retries and ends with the job.

This process is the driver. It merges the sums in the order of the ledger as they arrive. If a task fails for whatever
reason, this process sums the shard itself, so that a real error becomes the job's. Ray kills the process of a driver
whose cluster is unreachable for a minute, so it is a driver only while a job needs it and the cluster responds.
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
from worker.executors.pass_shard import add_shard, describe_pass, sign
from worker.executors.ray_liveness import PROBE_SECONDS, Silence, answers_at

if TYPE_CHECKING:
    from worker.example_reading import Reading
    from worker.versions.snapshot import ModelSnapshot

os.environ.setdefault("RAY_AUTH_MODE", "token")  # whoever can reach a cluster can run anything there
import ray  # noqa: E402
from ray.exceptions import RayError  # noqa: E402

log = structlog.get_logger("worker")

SECONDS_PER_ROW, SECONDS_PER_PRODUCT = 1.5e-6, 1e-10
"""Approximate time for a row and for a multiplication."""
LOST_AFTER_SECONDS = 20.0
"""Seconds without a response after which a job continues without Ray."""
LEAVE_SECONDS = 30.0
"""Maximum time that a job waits for Ray to disconnect from a cluster."""
POLL_SECONDS = 0.2
"""Interval between polls of the cluster."""
SILENCE_SECONDS = 90.0
"""Seconds without any result after which this process sums shards itself. If packets to a node are dropped, Ray
considers the node dead after 65 s, and restarts its tasks minutes later."""
MAX_RETRIES = 3
"""How often Ray restarts a task whose process or node was lost."""
ALONE = ", in one process because Ray is unavailable"


# Once and not for each pass: this call contacts the head of the cluster, and would block if it is unreachable.
TASK = ray.remote(add_shard)


class OnRay(InProcess):
    """Runs long computations on a cluster; short ones, and all while it is unavailable, in the worker's own process."""

    def __init__(self, settings: Settings, database: Database, device: torch.device) -> None:
        self.settings, self.database, self.device = settings, database, device
        self.away = False
        """Whether the cluster did not respond in time; the job's other passes do not wait again."""
        self.heard = 0.0
        """When the cluster last responded."""
        self.processors = 0.0
        """The largest number of processors of a node."""
        self.leaving = threading.Thread()

    def close(self) -> None:
        self.away = False
        if self.is_driver():
            self.leave()

    def is_driver(self) -> bool:
        """Whether this process may call the cluster."""
        return ray.is_initialized() and not self.leaving.is_alive()

    def leave(self) -> None:
        """Stop being a driver. If the head hangs, disconnecting hangs as well, and the job continues meanwhile."""
        self.leaving = threading.Thread(target=ray.shutdown, daemon=True)
        self.leaving.start()
        self.leaving.join(LEAVE_SECONDS)

    def is_distributed(self, reading: Reading, total: Accumulator) -> bool:
        seconds = len(reading.data.span) * (SECONDS_PER_ROW + SECONDS_PER_PRODUCT * total.work)
        if seconds <= self.settings.ray_min_seconds or len(reading.data.shards()) == 1:
            return False
        return self.connect(reading.progress)

    def reduce(self, reading: Reading, total: A) -> A:
        if self.is_distributed(reading, total):
            return self.reduce_by_tasks(reading, total)
        self.note_alone(reading)
        return super().reduce(reading, total)

    def note_alone(self, reading: Reading) -> None:
        """While the cluster is unavailable, say in the job's message that one process makes the pass."""
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
        """The first of the results; None if the cluster cannot provide it."""
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
                    log.warning("ray_task_timed_out", job=reading.attempt.job_id)
                    self.cancel([answers[0]])
                    silence.reached += 1  # this shard is done, but not by the cluster
                    return None
        except RayError as error:
            log.warning("ray_task_failed", job=reading.attempt.job_id, exc_info=error)
            return None
        if found is None:
            log.warning("ray_node_mismatched", job=reading.attempt.job_id)
            return None
        return unpack(found)[1]

    def cancel(self, answers: Iterable[Any]) -> None:
        """Kill tasks that are still running; they have nothing to clean up."""
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
        """Train a network by processes of the cluster if that is worthwhile, otherwise here, as `solve` does."""
        report = progress or (lambda fraction, phrase: None)
        epoch_seconds = 6.0 * objective.predictor.size * snapshot.count * SECONDS_PER_PRODUCT
        is_long = not objective.predictor.linear and epoch_seconds > self.settings.ray_min_seconds
        if not is_long or not self.connect(report) or self.members() == 0:
            here = self.say_alone(report) if is_long and self.away else progress
            return solve(objective, start, training, cost, here, watch)
        from worker.executors.ray_training import RayTraining

        must_stop = watch or (lambda passes, w: False)
        return RayTraining(self, objective, start, training, report, must_stop).solve(snapshot, cost)

    def say_alone(self, progress: Progress) -> Progress:
        """Progress of a training that says, while the cluster is unavailable, that one process does the work."""
        return lambda fraction, phrase: progress(fraction, phrase + ALONE if self.away else phrase)

    def training_device(self) -> str:
        """The device for training networks: GPUs if the cluster has any."""
        return "cuda" if self.settings.device != "cpu" and any(resource_by_node("GPU")) else "cpu"

    def members(self) -> int:
        """Number of processes that train one network; 0 if this process is as good."""
        wanted = self.settings.ray_processes
        if self.training_device() == "cuda":
            there = int(sum(resource_by_node("GPU")))
            return min(there, wanted or there)
        asked = self.resources("cpu")["num_cpus"]
        there = sum(
            int(processors // asked) for processors in resource_by_node("CPU")
        )  # a process cannot span two nodes
        return min(there, wanted) if min(there, wanted) > 1 else 0

    def is_lost(self) -> bool:
        """Whether the cluster has stopped responding; if so, this process stops being a driver."""
        now = time.monotonic()
        if not self.away and now - self.heard > PROBE_SECONDS:
            if answers_at(self.settings.ray_address):
                self.heard = now
            elif now - self.heard > min(LOST_AFTER_SECONDS, self.settings.ray_timeout):
                log.warning("ray_lost", address=self.settings.ray_address)
                self.away = True
                self.leave()
        return self.away

    def resources(self, device: str) -> dict[str, float]:
        """The resources that a process requests of a node."""
        if device == "cuda":
            return {"num_cpus": 0, "num_gpus": 1}  # an actor without num_cpus would request one
        return {"num_cpus": min(torch.get_num_threads(), self.processors)}

    def connect(self, progress: Progress) -> bool:
        """Whether there is a cluster; waits for one that does not respond, once per job."""
        end = time.monotonic() + self.settings.ray_timeout
        while not self.away and not self.is_driver():
            problem = self.try_to_connect()
            if not problem:
                return True
            if time.monotonic() >= end:
                log.warning("ray_unavailable", address=self.settings.ray_address, reason=problem)
                self.away = True
            progress(0.0, f"Waiting for Ray at {self.settings.ray_address}: {problem}")
            time.sleep(POLL_SECONDS)
        return not self.away

    def try_to_connect(self) -> str:
        """The reason why this process cannot connect; "" once it is a driver of the cluster."""
        address = self.settings.ray_address
        if not answers_at(address):  # Ray itself would take long to find out, and log a lot
            return "no response"
        if self.leaving.is_alive():
            return "the previous connection is still closing"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, namespace="amend", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # for example another version, a wrong token, no node on this host
            # the message is about clusters and contains no personal data
            log.warning("ray_connection_refused", address=address, reason=str(error.__cause__ or error), exc_info=error)
            return type(error).__name__
        finally:
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, handler)  # restore the worker's own handler, which hands jobs back
        self.processors = max(resource_by_node("CPU"), default=0.0)
        if self.processors < 1 or (self.device.type == "cuda" and max(resource_by_node("GPU"), default=0.0) < 1):
            self.leave()
            return "no node has a suitable processor"
        self.heard = time.monotonic()
        return ""


def resource_by_node(resource: str) -> list[float]:
    """The amount of a resource on each node."""
    return [float(node["Resources"].get(resource, 0.0)) for node in ray.nodes() if node["Alive"]]
