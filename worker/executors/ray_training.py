"""Training one network by processes on several nodes of a Ray cluster: places, watches and restarts them.

The members are actors in a placement group, so that two trainings cannot each hold half of what both need. After each
epoch the driver fetches a checkpoint and keeps it in memory, never in a file, because its weights may depend on people
who are erased later. If a member is lost, all are stopped, and new ones continue from the last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import ray
import structlog
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from core.kprior import Cost, SolverError, Training
from core.kprior.data.codec import unpack
from core.kprior.objective.objective import Objective
from core.kprior.solvers import Progress, Solution, Watch
from core.kprior.solvers.adam import adam
from core.kprior.solvers.checkpoint import Checkpoint, Checkpoints
from worker.executors.pass_shard import sign
from worker.executors.training_member import Member, describe_training

if TYPE_CHECKING:
    from worker.executors.ray_executor import OnRay
    from worker.versions.snapshot import ModelSnapshot

log = structlog.get_logger("worker")

POLL_SECONDS = 0.2
"""Interval between polls of the members."""
MAX_ATTEMPTS = 3
"""Failures in a row, without a complete epoch, after which one process trains alone."""
SILENCE_SECONDS = 60.0
"""Seconds without a response after which a member is considered lost."""


class ClusterShrunk(Exception):
    """The cluster has fewer processors than the training needs."""


class MemberRefused(Exception):
    """The signature of a member differs from this process's."""


class RayTraining:
    """One training, which this process continues from the last checkpoint if the cluster is lost."""

    def __init__(
        self, executor: OnRay, objective: Objective, start: Tensor, training: Training, progress: Progress, watch: Watch
    ) -> None:
        self.executor, self.objective, self.start, self.training = executor, objective, start, training
        self.progress, self.watch = progress, watch
        self.checkpoint: bytes | None = None
        self.epochs = self.passes = 0

    def solve(self, snapshot: ModelSnapshot, cost: Cost) -> Solution:
        failures = 0
        try:
            while failures < MAX_ATTEMPTS and not self.executor.is_lost() and self.executor.members() > 0:
                before = self.epochs
                try:
                    return self.solve_by_members(snapshot, cost)
                except ClusterShrunk:
                    continue
                except RayError as error:
                    failures = 1 if self.epochs > before else failures + 1
                    log.warning("ray_training_restarted", epoch=self.epochs, exc_info=error)
        except MemberRefused:
            log.warning("ray_node_mismatched")
        log.warning("ray_training_abandoned", epoch=self.epochs)
        resume, spent = None if self.checkpoint is None else Checkpoint.from_bytes(self.checkpoint), Cost()
        progress = self.executor.say_alone(self.progress)
        given = (self.objective, self.start, self.training, spent, progress, self.watch)
        found = adam(*given, checkpoints=Checkpoints(resume))
        add_cost(cost, spent)
        return found

    def solve_by_members(self, snapshot: ModelSnapshot, cost: Cost) -> Solution:
        executor, world = self.executor, self.executor.members()
        where = snapshot.model_id, snapshot.spec, snapshot.at, snapshot.removals_position
        signature = sign(executor.settings, executor.database, executor.training_device())
        request = ray.put(describe_training(where, signature, self.objective, self.start, self.training))
        with self.place_members(world) as (members, host):
            header, tensors = unpack(self.run(members, host, request))
        if "error" in header:
            raise SolverError(header["error"])
        add_cost(cost, Cost(**header["cost"]))
        return Solution(tensors["w"].to(self.start), header["converged"])

    @contextmanager
    def place_members(self, world: int) -> Iterator[tuple[list[Any], str]]:
        """The members and the host of the first one, once there is room for all; they are killed afterwards."""
        resources = self.executor.resources(self.executor.training_device())
        bundle = {name.removeprefix("num_").removesuffix("s").upper(): size for name, size in resources.items() if size}
        group = placement_group([bundle] * world, strategy="SPREAD")
        members: list[Any] = []
        try:
            ready = group.ready()
            while not ray.wait([ready], timeout=POLL_SECONDS)[0]:
                self.progress(0.0, f"Waiting for {world} processors of Ray")
                if self.executor.is_lost() or self.executor.members() < world:
                    raise ClusterShrunk
            host = address_of(placement_group_table(group)["bundles_to_node_id"].get(0))
            if host is None:  # lost right after it was placed
                raise ClusterShrunk
            for rank in range(world):
                place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
                # one thread trains, another responds to polls
                actor = ray.remote(Member).options(max_concurrency=2, scheduling_strategy=place, **resources)
                members.append(actor.remote())
            yield members, host
        finally:
            if self.executor.is_driver():
                for member in members:
                    with suppress(RayError):
                        ray.kill(member)
                with suppress(RayError):
                    remove_placement_group(group)

    def run(self, members: list[Any], host: str, request: Any) -> bytes:
        """The result of the first member. Raises RayError as soon as any member is lost."""
        first, world = members[0], len(members)
        address = f"{host}:{self.ask(first.find_port.remote())}"
        answers = [m.train.remote(request, rank, world, address, self.checkpoint) for rank, m in enumerate(members)]
        waiting = list(answers)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
            for answer in done:
                if ray.get(answer) is None:  # or it raises the member's error
                    raise MemberRefused
            if waiting:
                self.poll(first, world)
        found: bytes = ray.get(answers[0])
        return found

    def poll(self, first: Any, world: int) -> None:
        """Report the progress, and fetch the checkpoint after each epoch."""
        self.require_wanted()
        self.passes, fraction, phrase, epochs = self.ask(first.status.remote())
        if epochs > self.epochs:
            self.checkpoint, self.epochs = self.ask(first.checkpoint.remote()), epochs
        if phrase:
            self.progress(fraction, f"{phrase}, {world} processes on Ray")

    def ask(self, answer: Any) -> Any:
        """The response of a member. Raises RayError if there is none."""
        end = time.monotonic() + SILENCE_SECONDS
        while not ray.wait([answer], timeout=POLL_SECONDS)[0] and time.monotonic() < end:
            self.require_wanted()
        return ray.get(answer, timeout=0)

    def require_wanted(self) -> None:
        """Raise ClusterShrunk if the cluster is lost, or the job's own error if it must stop."""
        self.watch(self.passes, self.start)
        if self.executor.is_lost():
            raise ClusterShrunk


def address_of(node: str | None) -> str | None:
    """The address of a node; None if the node no longer exists."""
    return next((str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == node), None)


def add_cost(total: Cost, spent: Cost) -> None:
    for name, value in asdict(spent).items():
        setattr(total, name, getattr(total, name) + value)
