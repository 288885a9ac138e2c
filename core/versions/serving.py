"""A version's weights ready to answer: the predictor alone, without what adaptations need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.kprior import State


class Served:
    """Inputs in, predicted means out. Several threads may ask at once."""

    def __init__(self, number: int, data: bytes) -> None:
        state = State.from_bytes(data)
        self.number = number
        self.spec: dict[str, Any] = state.spec
        self._predictor = state.predictor
        # installed once: handing weights over at every call would swap them in and out of a shared module
        self._predictor.body.load_state_dict(self._predictor.unflatten(state.w), strict=False)
        self._predictor.body.eval()
        # a plain linear model is one product, which takes less than preparing its features
        self._affine: tuple[Tensor, Tensor] | None = None
        architecture = self.spec["architecture"]
        if architecture["kind"] == "linear" and architecture.get("degree", 1) == 1 and "features" not in architecture:
            weight = self._predictor.unflatten(state.w)["weight"]
            self._affine = weight[:, -1].clone(), weight[:, :-1].T.contiguous()

    def means(self, x: Tensor) -> Tensor:
        """h(f(x)) for raw inputs (n, ...): (n, K)."""
        with torch.inference_mode():
            z = self._predictor.encode(x)
            f = (
                self._predictor.body(z)
                if self._affine is None
                else torch.addmm(self._affine[0], z.flatten(1), self._affine[1])
            )
            return self._predictor.family.mean(f)
