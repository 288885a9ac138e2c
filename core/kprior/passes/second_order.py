"""Curvature of rows at given weights, with any backend, and the surrogate: sums that a state stores."""

from typing import ClassVar

from torch import Tensor

from core.kprior.curvature import Curvature, curvature_for
from core.kprior.curvature.surrogate import Surrogate
from core.kprior.data.codec import Tensors
from core.kprior.data.examples import Examples
from core.kprior.model.predictor import Predictor
from core.kprior.passes.accumulator import ModelAccumulator


class CurvatureSum(ModelAccumulator):
    """The curvature of rows, computed by a backend."""

    kind = "curvature"
    options: ClassVar[tuple[str, ...]] = ("backend",)

    def __init__(self, predictor: Predictor, w: Tensor, backend: str) -> None:
        super().__init__(predictor, w)
        self.backend = backend
        self.curvature: Curvature = curvature_for(predictor, backend)
        self.work = predictor.size**2 / 2 if predictor.linear else 1000.0 * predictor.size

    def add(self, chunk: Examples) -> None:
        self.curvature.add(self.predictor, self.w, chunk.x, self.predictor.weigh(chunk))

    def sums(self) -> Tensors:
        return self.curvature.tensors()

    def merge(self, sums: Tensors) -> None:
        on_device = {name: tensor.to(self.w.device) for name, tensor in sums.items()}
        self.curvature.merge(self.curvature.from_tensors(on_device, self.predictor))


class SurrogateSum(ModelAccumulator):
    """The surrogate of rows, for models that have one (`Surrogate.zeros`)."""

    kind = "surrogate"

    def __init__(self, predictor: Predictor, w: Tensor) -> None:
        super().__init__(predictor, w)
        self.surrogate = Surrogate.zeros(predictor)
        self.work = 0.0 if self.surrogate is None else 2.0 * self.surrogate.gram.numel()

    def add(self, chunk: Examples) -> None:
        if self.surrogate is not None:
            self.surrogate.add(self.predictor, self.w, chunk.x, self.predictor.weigh(chunk))

    def sums(self) -> Tensors:
        return {} if self.surrogate is None else vars(self.surrogate)

    def merge(self, sums: Tensors) -> None:
        if self.surrogate is not None:
            self.surrogate.merge(Surrogate(**{name: tensor.to(self.w.device) for name, tensor in sums.items()}))
