"""A model in memory: raw inputs in, predicted means out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from ..kprior.model.architectures import Glm, Hidden
from ..kprior.model.input_encoders import TableEncoder
from ..kprior.model.predictor import Predictor
from ..kprior.model.spec import PredictorSpec, frozen_encoder, shape_of
from ..kprior.model.target_scale import from_fitted, is_transformed
from ..kprior.model.uncertainty import Posterior, Uncertainty
from .explanations import Explainer, leaf_mass_of
from .frozen_encoders import Encode, onnx_encoder, plugin_encoder
from .table_outputs import TableOutputs
from .text_hashing import hashing_encoder

if TYPE_CHECKING:  # predictions do not need the modules for adaptation
    from core.kprior import State

Numbers = NDArray[Any]
INPUTS_PER_STEP = 1024
"""A network's activations may be much larger than its inputs."""


class LoadedModel:
    """A predictor with its weights loaded. It is thread-safe."""

    def __init__(
        self,
        predictor: Predictor,
        w: Tensor,
        number: int | None = None,
        posterior: Callable[[], Posterior] | None = None,
    ) -> None:
        self._predictor, self._posterior = predictor, posterior
        self._computed: Posterior | None = None
        self._explainer: Explainer | None = None
        self._leaf_mass: Tensor | None = None
        self.spec = predictor.spec
        self.number = number
        """Number of the version, if known."""
        self.threshold = 0.5
        """Binary targets: the probability above which the predicted class is 1. The policy of the model decides it."""
        self.encode: Encode | None = None
        """The frozen encoder. Without it, a model that has one takes the features instead of raw inputs."""
        self.shape = predictor.encoder.raw_shape
        """Shape of one input, after the frozen encoder."""
        self.outputs, self.size = predictor.family.outputs, predictor.size
        # loaded once: passing the weights with every call would swap them in and out of a shared module
        predictor.body.load_state_dict(predictor.unflatten(w), strict=False)
        predictor.body.eval()
        # a linear model of a vector is one product, which NumPy computes faster than torch
        self._affine: tuple[Numbers, Numbers] | None = None
        architecture = predictor.spec["architecture"]
        plain = architecture["kind"] == "linear" and architecture.get("degree", 1) == 1
        given = predictor.spec["input"]
        vectors = frozen_encoder(predictor.spec) is not None or (given["kind"] == "vector" and "transform" not in given)
        if plain and vectors and "features" not in architecture:
            weight = predictor.unflatten(w)["weight"].numpy()
            self._affine = weight[:, :-1].T.copy(), weight[:, -1].copy()
        self._table: TableOutputs | None = None
        if plain and isinstance(predictor.encoder, TableEncoder) and "features" not in architecture:
            self._table = TableOutputs(predictor.encoder, predictor.unflatten(w)["weight"])

    @classmethod
    def from_state(
        cls, state: State, number: int | None = None, posterior: Callable[[], Posterior] | None = None
    ) -> LoadedModel:
        """Load a version's state, whose predictor must not be used for anything else afterwards."""
        model = cls(state.predictor, state.w, number, posterior)
        model._leaf_mass = leaf_mass_of(state)
        return model

    @classmethod
    def from_file(cls, path: str) -> LoadedModel:
        """Load the file of a published model (`core/tracking/packaging.py`)."""
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["amend"])
            predictor = Predictor(about["spec"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        predictor.load_constants(tensors)
        model = cls(predictor, tensors["w"])
        model.encode = encoder_of_file(predictor.spec, tensors)
        model.threshold = about.get("threshold", model.threshold)
        return model

    def predict_means(self, x: Numbers) -> Numbers:
        """h(f(x)) for raw inputs (n, ...), n > 0: (n, K)."""
        x = self._encoded(x)
        if len(x) <= INPUTS_PER_STEP:
            return self._predict(x)
        return np.concatenate([self._predict(x[i : i + INPUTS_PER_STEP]) for i in range(0, len(x), INPUTS_PER_STEP)])

    def assess(self, x: Numbers) -> tuple[Numbers, Uncertainty]:
        """The means of `predict_means`, and their uncertainty: standard deviations and intervals.

        Raises ValueError if the uncertainty is not available for this model.
        """
        if self._posterior is None:
            raise ValueError("The model was loaded without its posterior.")
        posterior = self._computed = self._computed or self._posterior()
        x = self._encoded(x)
        if len(x) <= INPUTS_PER_STEP:
            return self._assess(posterior, x)
        # one array for each result: small results of many steps between large temporary arrays fragment the heap
        mean, std, low, high = np.empty((4, len(x), self.outputs))
        for start in range(0, len(x), INPUTS_PER_STEP):
            step = slice(start, start + INPUTS_PER_STEP)
            mean[step], (std[step], low[step], high[step]) = self._assess(posterior, x[step])
        return mean, Uncertainty(std, low, high)

    def _encoded(self, x: Numbers) -> Numbers:
        if self.encode is not None:
            x = self.encode(x.reshape(len(x), *shape_of(self.spec["input"])))
            # an infinite feature would saturate the output instead of making it invalid
            x = np.where(np.isfinite(x).all(1, keepdims=True), x, np.float32(np.nan))
        return x.reshape(len(x), *self.shape)

    def _assess(self, posterior: Posterior, x: Numbers) -> tuple[Numbers, Uncertainty]:
        if self._affine is not None:
            f, phi = x @ self._affine[0] + self._affine[1], np.concatenate([x, np.ones((len(x), 1), x.dtype)], 1)
        else:
            with torch.inference_mode():
                f, phi = (tensor.double().numpy() for tensor in self._outputs(torch.from_numpy(x)))
        mean = self._mean(torch.from_numpy(f).to(self._predictor.dtype))
        unsure = posterior.assess(self._predictor.family.name, f, phi)
        target = self.spec["target"]
        if is_transformed(target):
            low, high = from_fitted(target, unsure.low), from_fitted(target, unsure.high)
            # the slope of the exponential; for log1p, the mean is one less
            slope = mean + (1.0 if target.get("transform") == "log1p" else 0.0)
            unsure = Uncertainty(unsure.std * slope, low, high)
        return mean, unsure

    def explain(self, x: Numbers) -> list[dict[str, float]]:
        """What each input column contributes to the output, for raw inputs (n, ...).

        Raises Unexplainable if the model is not a sum over its columns.
        """
        if self._explainer is None:
            self._explainer = Explainer(self._predictor, self._leaf_mass)
        return self._explainer.explain(self._encoded(x), x)

    def assessing_work(self, rows: int) -> float:
        """The approximate number of multiplications in `assess`, whose first call computes the posterior."""
        if self._computed is None:
            return float(self.size) ** 3
        return float(self._computed.root.size * rows)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f (n, K), and the features (n, D) that it is linear in; for a network, the inputs of its last layer."""
        predictor = self._predictor
        if isinstance(predictor.body, Glm):
            phi = predictor.features(x)
            return phi @ predictor.body.weight.T, phi
        phi = predictor.last_features(x)
        return Hidden(predictor.body).last(phi[:, :-1]), phi

    def _predict(self, x: Numbers) -> Numbers:
        if self._affine is not None:
            return self._mean(torch.from_numpy(x @ self._affine[0] + self._affine[1]))
        if self._table is not None:
            return self._mean(torch.from_numpy(self._table(x)))
        with torch.inference_mode():
            return self._mean(self._predictor.body(self._predictor.encode(torch.from_numpy(x))))

    def _mean(self, f: Tensor) -> Numbers:
        means: Numbers = self._predictor.family.mean(f).numpy()
        return from_fitted(self.spec["target"], means)


def encoder_of_file(spec: PredictorSpec, tensors: dict[str, Tensor]) -> Encode | None:
    """The frozen encoder of a published model."""
    encoder = frozen_encoder(spec)
    if encoder is None:
        return None
    if encoder["kind"] == "onnx":
        return onnx_encoder(tensors["onnx"].numpy().tobytes(), spec["input"])
    if encoder["kind"] == "plugin":
        return plugin_encoder(encoder["name"], encoder["features"])
    return hashing_encoder(encoder["features"])
