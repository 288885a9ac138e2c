"""One network trained by processes on several nodes of a Ray cluster: they are placed, watched, and begun again.

Plain actors in a placement group, all of them or none, so that two trainings cannot each hold half of what both need.
After each epoch the driver fetches where the training stands, and keeps it in memory: weights that know people who may
be erased lie in no file. A member that is lost takes the others along; the next ones go on from the last epoch.
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
from core.kprior.solvers.checkpoint import Checkpoint
from worker.executors.member import Member, describe_training
from worker.executors.shard import sign

if TYPE_CHECKING:
    from worker.executors.on_ray import OnRay
    from worker.versions.snapshot import ModelSnapshot

log = structlog.get_logger("worker")

POLL_SECONDS = 0.2
"""Seconds between two looks at the members."""
MAX_ATTEMPTS = 3
"""How often members are placed in vain, with no epoch in between, before one process does it all."""
SILENCE_SECONDS = 60.0
"""Seconds without an answer after which a member is lost."""


class ClusterShrunk(Exception):
    """The cluster has not as many processors any more as there were to be members."""


class MemberRefused(Exception):
    """The members are not of the same kind as this process."""


class RayTraining:
    """One training; in this process from where it stands, if the cluster is lost."""

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
                    log.warning("a training on Ray is begun again where it stood", epoch=self.epochs, exc_info=error)
        except MemberRefused:
            log.warning("a node of Ray has another version, processor, secret or database")
        log.warning("a network is trained by one process, since several could not", epoch=self.epochs)
        resume, spent = None if self.checkpoint is None else Checkpoint.from_bytes(self.checkpoint), Cost()
        progress = self.executor.say_alone(self.progress)
        found = adam(self.objective, self.start, self.training, spent, progress, self.watch, resume=resume)
        add_cost(cost, spent)
        return found

    def solve_by_members(self, snapshot: ModelSnapshot, cost: Cost) -> Solution:
        executor, world = self.executor, self.executor.members()
        where = snapshot.model_id, snapshot.spec, snapshot.at
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
        """The members and where the first of them is, once there is room for all; they are gone afterwards."""
        resources = self.executor.resources(self.executor.training_device())
        bundle = {name.removeprefix("num_").removesuffix("s").upper(): size for name, size in resources.items() if size}
        group = placement_group([bundle] * world, strategy="SPREAD")
        members: list[Any] = []
        try:
            ready = group.ready()
            while not ray.wait([ready], timeout=POLL_SECONDS)[0]:
                self.progress(0.0, f"waiting for {world} processors of Ray")
                if self.executor.is_lost() or self.executor.members() < world:
                    raise ClusterShrunk
            host = address_of(placement_group_table(group)["bundles_to_node_id"].get(0))
            if host is None:  # lost as soon as it was there
                raise ClusterShrunk
            for rank in range(world):
                place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
                # one thread trains, another answers
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
        """What the first member answers; RayError as soon as any of them is lost."""
        first, world = members[0], len(members)
        address = f"{host}:{self.ask(first.find_port.remote())}"
        answers = [m.train.remote(request, rank, world, address, self.checkpoint) for rank, m in enumerate(members)]
        waiting = list(answers)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
            for answer in done:
                if ray.get(answer) is None:  # or it raises what became of it
                    raise MemberRefused
            if waiting:
                self.poll(first, world)
        found: bytes = ray.get(answers[0])
        return found

    def poll(self, first: Any, world: int) -> None:
        """Tell how far it is, and fetch what an epoch has brought."""
        self.require_wanted()
        self.passes, fraction, phrase, epochs = self.ask(first.status.remote())
        if epochs > self.epochs:
            self.checkpoint, self.epochs = self.ask(first.checkpoint.remote()), epochs
        if phrase:
            self.progress(fraction, f"{phrase}, {world} processes on Ray")

    def ask(self, answer: Any) -> Any:
        """What a member answers; RayError if it does not."""
        end = time.monotonic() + SILENCE_SECONDS
        while not ray.wait([answer], timeout=POLL_SECONDS)[0] and time.monotonic() < end:
            self.require_wanted()
        return ray.get(answer, timeout=0)

    def require_wanted(self) -> None:
        """ClusterShrunk if the cluster is lost; whatever the job raises if it must stop."""
        self.watch(self.passes, self.start)
        if self.executor.is_lost():
            raise ClusterShrunk


def address_of(node: str | None) -> str | None:
    """The address of a node; None if there is no such node any more."""
    return next((str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == node), None)


def add_cost(total: Cost, spent: Cost) -> None:
    for name, value in asdict(spent).items():
        setattr(total, name, getattr(total, name) + value)
