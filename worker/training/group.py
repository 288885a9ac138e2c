"""Training one network in several processes, one for each GPU: the worker starts them, watches and ends them.

The process that runs the job computes nothing meanwhile: a member that dies or hangs in a collective operation cannot
take it along, and all of them end when it says so, or when it dies. They speak through pipes, so that no weights lie
about in files; `rank.py` is the other side.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import IO, Any

import structlog
import torch
from torch import Tensor

from core.errors import Unavailable
from core.kprior import Cost, SolverError, Training
from core.kprior.data.codec import Tensors, join_groups, pack, unpack
from core.kprior.objective.objective import Objective
from core.kprior.solvers import Progress, Solution, Solve, Watch, solve
from worker.heartbeat import HandedBack
from worker.passes.shared import MULTIPLYING
from worker.versions.snapshot import ModelSnapshot

log = structlog.get_logger("worker")

LOOK = 0.2
"""Seconds between two looks whether all members live."""

Frame = tuple[dict[str, Any], Tensors]
Members = list["subprocess.Popen[bytes]"]


def solver_of(snapshot: ModelSnapshot) -> Solve:
    """How a model is trained: a network whose epochs are long in as many processes as there are devices for it."""
    devices, settings = snapshot.context.training_devices, snapshot.context.settings

    def solve_(
        objective: Objective,
        start: Tensor,
        training: Training,
        cost: Cost,
        progress: Progress | None,
        watch: Watch | None,
    ) -> Solution:
        epoch = 6.0 * objective.predictor.size * snapshot.count * MULTIPLYING
        if objective.predictor.linear or len(devices) == 1 or epoch <= settings.share_seconds:
            return solve(objective, start, training, cost, progress, watch)
        described = describe_training(snapshot, objective, start, training)
        try:
            with start_members(devices, described) as members:
                return Watcher(snapshot, members, start, progress, watch).solution(cost)
        except Unavailable as error:  # memory, a driver, a member that was killed: one process may do all the same
            log.warning("the network is trained by one process, since several could not", reason=error.detail)
            return solve(objective, start, training, cost, progress, watch)

    return solve_


def describe_training(snapshot: ModelSnapshot, objective: Objective, start: Tensor, training: Training) -> Frame:
    """All that a member needs to know: it reads the examples itself."""
    where = {"model": snapshot.model_id, "spec": snapshot.spec, "at": snapshot.at, "training": asdict(training)}
    tensors = {"start": start, "delta": objective.delta, "linear": objective.linear}
    return where, tensors | join_groups({"encoder": objective.predictor.encoder.state_dict()})


@contextmanager
def start_members(devices: Sequence[torch.device], described: Frame) -> Iterator[Members]:
    """The members at work; they are gone afterwards, whatever happens."""
    header, tensors = described
    threads = max(1, torch.get_num_threads() // len(devices))
    members: Members = []
    with TemporaryDirectory() as folder:  # where they find each other
        try:
            for rank, device in enumerate(devices):
                place = {"rank": rank, "world": len(devices), "device": str(device), "threads": threads}
                output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
                command = [sys.executable, "-P", "-m", "worker.training.rank"]
                # of their own session: a signal to all of a terminal's processes is the worker's to see to
                member = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, start_new_session=True)
                members.append(member)
                # a pipe takes little before it is read, and that may be never
                frame = (member.stdin, {**header, **place, "folder": folder}, tensors)
                threading.Thread(target=send, args=frame, daemon=True).start()
            yield members
        finally:
            for member in members:
                member.kill()
            for member in members:
                member.wait()
                for pipe in (member.stdin, member.stdout):
                    with suppress(OSError):
                        if pipe is not None:
                            pipe.close()


def send(pipe: IO[bytes] | None, header: dict[str, Any], tensors: Tensors) -> None:
    with suppress(OSError, ValueError):  # whoever looks will see that the member is gone
        write(pipe, header, tensors)


class Watcher:
    """Waits for what the first member says, and for nothing once one is lost."""

    def __init__(
        self, snapshot: ModelSnapshot, members: Members, start: Tensor, progress: Progress | None, watch: Watch | None
    ) -> None:
        self.snapshot, self.members, self.start = snapshot, members, start
        self.progress, self.watch = progress, watch
        self.said: SimpleQueue[Frame | None] = SimpleQueue()
        self.passes = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        frame = read(self.members[0].stdout)
        while frame is not None:
            self.said.put(frame)
            frame = read(self.members[0].stdout)
        self.said.put(None)

    def solution(self, cost: Cost) -> Solution:
        while True:
            try:
                frame = self.said.get(timeout=LOOK)
                if frame is None:
                    self.raise_lost()
                else:
                    header, tensors = frame
                    if "error" in header:
                        self.raise_failure(**header["error"])
                    if "cost" in header:
                        for name, spent in header["cost"].items():
                            setattr(cost, name, getattr(cost, name) + spent)
                        return Solution(tensors["w"].to(self.start), header["converged"])
                    self.passes = header["passes"]
                    if "phrase" in header and self.progress:
                        self.progress(header["share"], header["phrase"])
            except Empty:
                if any(member.poll() for member in self.members):
                    self.raise_lost()
            if self.watch:
                self.watch(self.passes, self.start)  # it raises when the job must stop

    def raise_failure(self, kind: str, words: str) -> None:
        """Raise what a member ended with."""
        if kind == SolverError.__name__:
            raise SolverError(words)
        if "out of memory" in words.lower():
            raise MemoryError
        self.raise_lost()

    def raise_lost(self) -> None:
        if self.snapshot.context.stopping():
            raise HandedBack  # a signal to all processes, these included
        raise Unavailable("training_lost", "A process that trained the network together with others was lost.")


def write(pipe: IO[bytes] | None, header: dict[str, Any], tensors: Tensors) -> None:
    """Send a frame: its length, and a safetensors file."""
    assert pipe is not None
    data = pack(header, tensors)
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def read(pipe: IO[bytes] | None) -> Frame | None:
    """The next frame; None when the other side is gone."""
    assert pipe is not None
    try:
        size = int.from_bytes(pipe.read(8), "little")
        data = pipe.read(size) if size else b""
    except (OSError, ValueError):  # closed, by us
        return None
    return unpack(data) if size and len(data) == size else None
