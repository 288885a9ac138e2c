"""A version's weights ready to answer: the predictor alone, without what adaptations need."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior import State

Numbers = NDArray[Any]


class Served:
    """Inputs in, predicted means out. Several threads may ask at once."""

    def __init__(self, number: int, data: bytes) -> None:
        state = State.from_bytes(data)
        self.number = number
        self.spec: dict[str, Any] = state.spec
        self._predictor = state.predictor
        self.outputs = state.predictor.family.outputs
        # installed once: handing weights over at every call would swap them in and out of a shared module
        self._predictor.body.load_state_dict(self._predictor.unflatten(state.w), strict=False)
        self._predictor.body.eval()
        # a linear model of a vector is one product, which takes less time than asking torch for it
        self._affine: tuple[Numbers, Numbers] | None = None
        architecture = self.spec["architecture"]
        plain = architecture["kind"] == "linear" and architecture.get("degree", 1) == 1
        if plain and self.spec["input"]["kind"] == "vector" and "features" not in architecture:
            weight = self._predictor.unflatten(state.w)["weight"].numpy()
            self._affine = weight[:, :-1].T.copy(), weight[:, -1].copy()

    def means(self, x: Numbers) -> Numbers:
        """h(f(x)) for raw inputs (n, ...): (n, K)."""
        if self._affine is not None:
            return self._mean(torch.from_numpy(x @ self._affine[0] + self._affine[1]))
        with torch.inference_mode():
            return self._mean(self._predictor.body(self._predictor.encode(torch.from_numpy(x))))

    def _mean(self, f: Tensor) -> Numbers:
        means: Numbers = self._predictor.family.mean(f).numpy()
        return means
