"""Weights ready to answer: raw inputs in, predicted means out."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior.model.predictor import Predictor

Numbers = NDArray[Any]


class Means:
    """A predictor with its weights in place. Several threads may ask at once."""

    def __init__(self, predictor: Predictor, w: Tensor) -> None:
        self._predictor = predictor
        self.outputs = predictor.family.outputs
        # installed once: handing weights over at every call would swap them in and out of a shared module
        predictor.body.load_state_dict(predictor.unflatten(w), strict=False)
        predictor.body.eval()
        # a linear model of a vector is one product, which takes less time than asking torch for it
        self._affine: tuple[Numbers, Numbers] | None = None
        architecture = predictor.spec["architecture"]
        plain = architecture["kind"] == "linear" and architecture.get("degree", 1) == 1
        if plain and predictor.spec["input"]["kind"] == "vector" and "features" not in architecture:
            weight = predictor.unflatten(w)["weight"].numpy()
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
