"""One of the processes that train a network together: its request and its response.

Each member reads all examples and draws the same minibatches, computes the gradient of its part, and adds it to the
others'. It does not depend on Ray: `ray_training.py` places the members and polls them from another thread.
"""

import os
import socket
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TypedDict, cast

import psutil
import torch
import torch.distributed as distributed
from torch import Tensor

from core.kprior import Cost, Predictor, SolverError, Training
from core.kprior.data.codec import Tensors, pack, unpack
from core.kprior.model.spec import Spec
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.solvers.adam import adam
from core.kprior.solvers.checkpoint import Checkpoint, Checkpoints
from core.ledger import passes
from worker.executors.pass_shard import ProcessContext

TIMEOUT = timedelta(minutes=30)
"""Leaves time for members that read the examples more slowly. A lost process is noticed at once; a member that only the
other members cannot reach is noticed after this time."""


class TrainingRequest(TypedDict):
    """The request that all members receive."""

    model: int
    spec: Spec
    at: int
    removals_position: int
    threads: int
    signature: list[str]
    training: dict[str, Any]
    batch_statistics: bool


class Team:
    """A group of members that sums by torch.distributed: NCCL between GPUs, Gloo between CPUs."""

    def __init__(self, rank: int, world: int, address: str, device: torch.device) -> None:
        self.rank, self.world = rank, world
        backend = "nccl" if device.type == "cuda" else "gloo"
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface_towards(address))
        where = f"tcp://{address}"
        distributed.init_process_group(backend, where, timeout=TIMEOUT, rank=rank, world_size=world)

    def sum(self, values: Tensor) -> Tensor:
        distributed.all_reduce(values)
        return values


def interface_towards(address: str) -> str:
    """The network interface of this host that leads to the address where the members meet.

    Gloo would use the interface of the host name, which on Debian is the loopback, where other hosts cannot reach it.
    """
    host, _, port = address.rpartition(":")
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # nothing is sent
        own = probe.getsockname()[0]
    there = psutil.net_if_addrs().items()
    return next(str(name) for name, places in there if own in [each.address for each in places])


class Member:
    """One member, in a process of its own."""

    def __init__(self) -> None:
        self.passes, self.fraction, self.phrase = 0, 0.0, ""
        self.last: Checkpoint | None = None

    def find_port(self) -> int:
        """A free port where the other members can reach this one."""
        with socket.socket() as free:
            free.bind(("", 0))
            return int(free.getsockname()[1])

    def status(self) -> tuple[int, float, str, int]:
        """The number of backward passes, the progress as a fraction in 0..1 and a phrase, and the number of epochs."""
        return self.passes, self.fraction, self.phrase, 0 if self.last is None else self.last.epoch

    def checkpoint(self) -> bytes:
        """The checkpoint after the last complete epoch."""
        assert self.last is not None
        return self.last.to_bytes()

    def train(self, request: bytes, rank: int, world: int, address: str, checkpoint: bytes | None) -> bytes | None:
        """The weights and the cost; None if this member's signature differs from the requester's."""
        header, tensors = unpack(request)
        asked = cast(TrainingRequest, header)
        context = ProcessContext.of_this_process(asked["signature"][2])
        if context.signature != asked["signature"]:
            return None
        torch.set_num_threads(asked["threads"])
        try:
            return self.solve(context, asked, tensors, rank, world, address, checkpoint)
        except SolverError as error:  # all members raise the same error
            return pack({"error": str(error)}, {})

    def solve(
        self,
        context: ProcessContext,
        asked: TrainingRequest,
        tensors: Tensors,
        rank: int,
        world: int,
        address: str,
        checkpoint: bytes | None,
    ) -> bytes:
        device = context.device
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        training, cost = Training(**asked["training"]), Cost()
        predictor = Predictor(asked["spec"], training.seed, device)
        predictor.load_constants(tensors)
        predictor.batch_statistics = asked["batch_statistics"]
        where = context.database, asked["model"], asked["spec"], asked["at"]
        data = passes.read_in_force(*where, removals_position=asked["removals_position"])
        objective = Objective(predictor, tensors["delta"], tensors["linear"], [Term(predictor, data, past=True)])
        team = Team(rank, world, address, device) if world > 1 else None
        resume = None if checkpoint is None else Checkpoint.from_bytes(checkpoint)
        keep = self.keep_checkpoint if rank == 0 else None
        checkpoints = Checkpoints(resume, keep)
        found = adam(objective, tensors["start"], training, cost, self.note_progress, self.watch, team, checkpoints)
        if team is not None:
            distributed.destroy_process_group()
        return pack({"cost": asdict(cost), "converged": found.converged}, {"w": found.w})

    def watch(self, backward_passes: int, _w: Tensor) -> bool:
        self.passes = backward_passes
        return False

    def note_progress(self, fraction: float, phrase: str) -> None:
        self.fraction, self.phrase = fraction, phrase

    def keep_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.last = checkpoint


def describe_training(
    where: tuple[int, Spec, int, int], signature: list[str], objective: Objective, start: Tensor, training: Training
) -> bytes:
    """The request for the members, which read the examples themselves."""
    model, spec, at, removals_position = where
    request: TrainingRequest = {
        "model": model,
        "spec": spec,
        "at": at,
        "removals_position": removals_position,
        "threads": torch.get_num_threads(),
        "signature": signature,
        "training": asdict(training),
        "batch_statistics": objective.predictor.batch_statistics,
    }
    tensors = {"start": start, "delta": objective.delta, "linear": objective.linear}
    return pack({**request}, tensors | objective.predictor.constants())
