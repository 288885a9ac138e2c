"""A network's training between two epochs, so that it can go on elsewhere as if it had never stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.data.codec import pack, unpack
from core.kprior.solvers.schedule import Schedule


@dataclass(frozen=True)
class Checkpoint:
    """All that the epochs to come depend on, but for the data."""

    epoch: int
    """How many are done."""
    w: Tensor
    first: Tensor
    """Adam's mean of gradients."""
    second: Tensor
    """Adam's mean of their squares."""
    step: int
    draws: Tensor
    """Where the random numbers of the minibatches stand."""
    schedule: dict[str, float]
    cost: Cost

    @classmethod
    def of(
        cls,
        epoch: int,
        w: Tensor,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        schedule: Schedule,
        cost: Cost,
    ) -> Checkpoint:
        state = optimizer.state[w]
        moments = state["exp_avg"].clone(), state["exp_avg_sq"].clone(), int(state["step"])
        return cls(epoch, w.detach().clone(), *moments, generator.get_state(), dict(vars(schedule)), cost + Cost())

    def restore(
        self, w: Tensor, optimizer: torch.optim.Optimizer, generator: torch.Generator, schedule: Schedule, cost: Cost
    ) -> None:
        """Put everything where it was."""
        with torch.no_grad():
            w.copy_(self.w)
        step = torch.tensor(float(self.step))
        optimizer.state[w] = {"step": step, "exp_avg": self.first.to(w), "exp_avg_sq": self.second.to(w)}
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
