"""`python -m worker.training.rank`: one of the processes that train a network; `group.py` starts and ends it.

Each reads all examples and draws the same minibatches, computes the gradient of its share, and adds it to the others'.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import IO, Any

import structlog
import torch
import torch.distributed as distributed
from torch import Tensor

from core import logs
from core.database import Database
from core.kprior import Cost, Predictor, SolverError, Training
from core.kprior.data.codec import Tensors, take_group
from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Term
from core.kprior.solvers.adam import adam
from core.ledger import passes
from core.settings import from_environment
from worker.training.group import Frame, read, write

log = structlog.get_logger("worker")

NEWS = 0.5
"""Seconds between two words of how far it is."""
PATIENCE = timedelta(minutes=30)
"""For members that read the examples more slowly than others; one that is gone is noticed at once."""


class Member:
    """A `Team` by torch.distributed: NCCL between GPUs, Gloo between CPUs, of one machine."""

    def __init__(self, rank: int, world: int, device: torch.device, folder: str) -> None:
        self.rank, self.world = rank, world
        for library in ("GLOO", "NCCL"):
            if os.path.exists("/sys/class/net/lo"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")  # nobody else is to join
        backend = "nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        where = f"file://{folder}/members"
        distributed.init_process_group(backend, where, timeout=PATIENCE, rank=rank, world_size=world)

    def sum(self, values: Tensor) -> Tensor:
        distributed.all_reduce(values)
        return values


class Reporter:
    """Tells how far the training is, now and then."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._told, self._passes = pipe, 0.0, 0

    def watch(self, backward_passes: int, _w: Tensor) -> bool:
        self._passes = backward_passes
        if time.monotonic() - self._told > NEWS:
            self._report({})
        return False

    def progress(self, share: float, phrase: str) -> None:
        if time.monotonic() - self._told > NEWS:
            self._report({"share": share, "phrase": phrase})

    def _report(self, more: dict[str, Any]) -> None:
        self._told = time.monotonic()
        write(self._pipe, {"passes": self._passes, **more}, {})


def main() -> None:
    frame = read(sys.stdin.buffer)
    if frame is None:
        return
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print must not end up between our words
    settings = from_environment()
    logs.configure(settings.log_level)
    threading.Thread(target=end_with_parent, daemon=True).start()
    header, tensors = frame
    first = header["rank"] == 0
    try:
        found = solve_part(header, tensors, Database(settings), Reporter(pipe) if first else None)
    except Exception as error:
        log.error("a member of a training failed", rank=header["rank"], exc_info=error)
        if first:
            write(pipe, {"error": {"kind": type(error).__name__, "words": str(error)}}, {})
        sys.exit(0 if isinstance(error, SolverError) else 1)  # that, all of them find out for themselves
    if first:
        write(pipe, *found)


def solve_part(header: dict[str, Any], tensors: Tensors, database: Database, reporter: Reporter | None) -> Frame:
    torch.set_num_threads(header["threads"])
    device = torch.device(header["device"])
    here = {name: tensor.to(device) for name, tensor in tensors.items()}
    team = Member(header["rank"], header["world"], device, header["folder"])
    training, cost = Training(**header["training"]), Cost()
    predictor = Predictor(header["spec"], training.seed, device)
    predictor.encoder.load_state_dict(take_group(here, "encoder"))
    data = passes.read_in_force(database, header["model"], header["spec"], header["at"])
    objective = Objective(predictor, here["delta"], here["linear"], [Term(predictor, data, past=True)])
    progress, watch = (None, None) if reporter is None else (reporter.progress, reporter.watch)
    solution = adam(objective, here["start"], training, cost, progress, watch, team)
    distributed.destroy_process_group()
    return {"cost": asdict(cost), "converged": solution.converged}, {"w": solution.w}


def end_with_parent() -> None:
    sys.stdin.buffer.read()  # until the worker closes it, or is gone
    os._exit(1)


if __name__ == "__main__":
    main()
