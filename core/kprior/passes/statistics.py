"""Statistics of rows at given weights: how many they are, what the model loses on them, and on demand more.

All that a pass finds out is a sum (or a maximum) over rows: certificates, training, memory selection and the full-batch
solvers ask for it here.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from core.kprior.curvature import Full, curvature_for, glm_hessian
from core.kprior.data.codec import Tensors, join_groups, take_group
from core.kprior.data.examples import Examples
from core.kprior.memory.selection import MemorySelection
from core.kprior.model.predictor import Predictor
from core.kprior.objective.surrogate import Surrogate
from core.kprior.passes.accumulator import Accumulator
from core.kprior.passes.rounding import gradient_rounding


class Statistics(Accumulator):
    """Sums over rows at the weights w."""

    kind = "statistics"

    def __init__(
        self,
        predictor: Predictor,
        w: Tensor,
        *,
        slope: bool = False,
        curvature: str | None = None,
        surrogate: bool = False,
        careful: bool = False,
        selection: MemorySelection | None = None,
        temperature: float = 1.0,
        origin: Tensor | None = None,
    ) -> None:
        """`slope` asks for value and gradient, `curvature` names a backend; `careful` (GLM) asks for what rounding may
        have done and the largest squared length of a row, `origin` for how far any row's outputs are from where they
        were at those weights.
        """
        self.predictor, self.w, self.slope, self.careful = predictor, w, slope, careful
        self.temperature, self.origin = temperature, origin
        self.count = 0
        self.value = self.longest = self.rounding = self.spread = 0.0
        self.gradient = torch.zeros_like(w)
        self.curvature = None if curvature is None else curvature_for(predictor, curvature)
        self.surrogate = Surrogate.zeros(predictor) if surrogate else None
        self.selection = selection

    @property
    def work(self) -> float:  # type: ignore[override]
        P, K = self.predictor.size, self.predictor.family.outputs
        square = P * P / 2 if self.predictor.linear else P * 1000.0
        work = P * (6.0 if self.slope else 0.0)
        work += square * (self.curvature is not None)
        if self.surrogate is not None:
            work += 2.0 * self.surrogate.gram.numel()
        if self.selection is not None and self.selection.hessian is not None:
            work += 2 * square
        return work + K

    def empty(self) -> Self:
        return type(self)(
            self.predictor,
            self.w,
            slope=self.slope,
            curvature=None if self.curvature is None else self.curvature.kind,
            surrogate=self.surrogate is not None,
            careful=self.careful,
            selection=None if self.selection is None else self.selection.empty(),
            temperature=self.temperature,
            origin=self.origin,
        )

    def add(self, chunk: Examples) -> None:
        self.predictor.check(chunk)
        whole = self.predictor.linear and isinstance(self.curvature, Full)
        if self.slope or self.careful or whole:
            x = chunk.x
            z = self.predictor.features(x) if self.predictor.linear else self.predictor.encode(x)
            self.add_encoded(z, chunk.y.to(z))
        else:
            self.count += len(chunk)
        if self.curvature is not None and not whole:
            self.curvature.add(self.predictor, self.w, chunk.x)
        if self.surrogate is not None:
            self.surrogate.add(self.predictor, self.w, chunk.x)
        if self.selection is not None:
            self.selection.offer(chunk)

    def add_encoded(self, z: Tensor, targets: Tensor, weight: Tensor | None = None) -> None:
        """Add rows that are encoded already (GLM: features); `weight` is what each of them counts.

        With a temperature T both sides are divided by it and the loss is multiplied by T^2 (paper, Eq. 27).
        """
        self.count += len(z)
        family, T = self.predictor.family, self.temperature
        if not self.predictor.linear:
            w = self.w.detach().requires_grad_()
            loss = family.loss(targets, self.predictor.outputs_of_encoded(w, z) / T) * (T * T)
            total = (loss if weight is None else loss * weight).sum()
            self.gradient = self.gradient + torch.autograd.grad(total, w)[0]
            self.value += float(total.detach())
            return
        f = z @ self.w.view(family.outputs, -1).T
        loss = family.loss(targets, f / T) * (T * T)
        residual = (family.mean(f / T) - targets) * T
        if weight is not None:
            loss, residual = loss * weight, residual * weight[:, None]
        self.value += float(loss.sum())
        self.gradient = self.gradient + (residual.T @ z).reshape(-1)
        if isinstance(self.curvature, Full):
            self.curvature.matrix += glm_hessian(z, family, f / T, weight)
        if self.careful:
            self.rounding += gradient_rounding(self.predictor, z, f, targets, self.w)
            self.longest = max(self.longest, float((z**2).sum(1).max()))
        if self.origin is not None:
            change = z @ (self.w - self.origin).view(family.outputs, -1).T
            self.spread = max(self.spread, float(family.spread(change).max()))

    @property
    def curvature_matrix(self) -> Tensor:
        """The whole matrix of the curvature, where it was asked for."""
        assert isinstance(self.curvature, Full)
        return self.curvature.matrix

    def sums(self) -> Tensors:
        scalars = torch.tensor([self.value, self.rounding, self.longest, self.spread], dtype=torch.float64)
        found = {"count": torch.tensor(self.count), "figures": scalars, "gradient": self.gradient}
        return found | join_groups(
            {
                "curvature": {} if self.curvature is None else self.curvature.tensors(),
                "surrogate": {} if self.surrogate is None else vars(self.surrogate),
                "selection": {} if self.selection is None else self.selection.sums(),
            }
        )

    def merge(self, sums: Tensors) -> None:
        value, rounding, longest, spread = sums["figures"].tolist()
        self.count += int(sums["count"])
        self.value, self.rounding = self.value + value, self.rounding + rounding
        self.longest, self.spread = max(self.longest, longest), max(self.spread, spread)
        self.gradient = self.gradient + sums["gradient"].to(self.gradient)
        here = {name: tensor.to(self.w.device) for name, tensor in sums.items()}
        if self.curvature is not None:
            self.curvature.merge(self.curvature.from_tensors(take_group(here, "curvature"), self.predictor))
        if self.surrogate is not None:
            self.surrogate.merge(Surrogate(**take_group(here, "surrogate")))
        if self.selection is not None:
            self.selection.merge(take_group(sums, "selection"))

    def to_config(self) -> tuple[dict[str, Any], Tensors]:
        header: dict[str, Any] = {
            "spec": self.predictor.spec,
            "slope": self.slope,
            "curvature": None if self.curvature is None else self.curvature.kind,
            "surrogate": self.surrogate is not None,
            "careful": self.careful,
            "temperature": self.temperature,
        }
        tensors = {"w": self.w} | join_groups({"encoder": self.predictor.encoder.state_dict()})
        if self.origin is not None:
            tensors["origin"] = self.origin
        if self.selection is not None:
            header["selection"], chosen_by = self.selection.to_config()
            tensors |= join_groups({"selection": chosen_by})
        return header, tensors

    @classmethod
    def from_config(cls, header: dict[str, Any], tensors: Tensors, device: torch.device) -> Statistics:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        predictor = Predictor(header["spec"], device=device)
        predictor.encoder.load_state_dict(take_group(tensors, "encoder"))
        w, options = tensors["w"], ("slope", "curvature", "surrogate", "careful", "temperature")
        selection = None
        if "selection" in header:
            selection = MemorySelection.from_config(header["selection"], take_group(tensors, "selection"), predictor, w)
        chosen = {name: header[name] for name in options}
        return cls(predictor, w, **chosen, selection=selection, origin=tensors.get("origin"))
