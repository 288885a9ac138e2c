"""The state of a network's training between two epochs, with which another process can continue it exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from core.kprior.data.codec import pack, unpack
from core.kprior.passes.cost import Cost
from core.kprior.solvers.fused_adam import FusedAdam
from core.kprior.solvers.learning_rate import Schedule


@dataclass(frozen=True)
class Checkpoint:
    """Everything that the remaining epochs depend on, except the data."""

    epoch: int
    """Number of completed epochs."""
    w: Tensor
    first: Tensor
    """Adam's running mean of gradients."""
    second: Tensor
    """Adam's running mean of squared gradients."""
    step: int
    draws: Tensor
    """State of the minibatches' random generator."""
    schedule: dict[str, float]
    cost: Cost

    @classmethod
    def of(
        cls, epoch: int, optimizer: FusedAdam, generator: torch.Generator, schedule: Schedule, cost: Cost
    ) -> Checkpoint:
        w, moments = optimizer.w.detach().clone(), (optimizer.first.clone(), optimizer.second.clone())
        drawn = generator.get_state()
        return cls(epoch, w, *moments, int(optimizer.steps), drawn, dict(vars(schedule)), cost + Cost())

    def restore(self, optimizer: FusedAdam, generator: torch.Generator, schedule: Schedule, cost: Cost) -> None:
        """Restore this state."""
        with torch.no_grad():
            optimizer.w.copy_(self.w)
            optimizer.first.copy_(self.first)
            optimizer.second.copy_(self.second)
            optimizer.steps.fill_(self.step)
        generator.set_state(self.draws)
        vars(schedule).update(self.schedule)
        vars(cost).update(asdict(self.cost))

    def to_bytes(self) -> bytes:
        header = {"epoch": self.epoch, "step": self.step, "schedule": self.schedule, "cost": asdict(self.cost)}
        return pack(header, {"w": self.w, "first": self.first, "second": self.second, "draws": self.draws})

    @classmethod
    def from_bytes(cls, data: bytes) -> Checkpoint:
        header, tensors = unpack(data)
        parts = (header["epoch"], tensors["w"], tensors["first"], tensors["second"], header["step"], tensors["draws"])
        return cls(*parts, header["schedule"], Cost(**header["cost"]))


@dataclass(frozen=True)
class Checkpoints:
    """Where a training resumes, and what receives its checkpoints."""

    resume: Checkpoint | None = None
    """State of another training of the same objective after an epoch."""
    keep: Callable[[Checkpoint], None] | None = None
    """Called after each epoch."""
