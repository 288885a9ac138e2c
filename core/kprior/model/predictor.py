"""A predictor: encoder, body and family together, as a function f(w, x) of one flat weight vector.

Weights are an argument and not stored inside, because the engine compares many weights on the same body.
Linear predictors work in float64 (their solves are exact), networks in float32.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from .architectures import Glm, Hidden, architecture_of
from .input_encoders import Encoder, model_encoder
from .losses import family_of
from .spec import PredictorSpec, class_weights
from .tree_splits import LeafEncoder


class Rows(Protocol):
    """The parts of examples that a predictor reads."""

    @property
    def x(self) -> Tensor: ...

    @property
    def y(self) -> Tensor: ...

    @property
    def weight(self) -> Tensor | None: ...


class Predictor:
    """f(w, x) for one spec.

    Parameters
    ----------
    spec
        {"input": ..., "target": ..., "architecture": ...}; other entries are ignored.
    seed
        Seed of a network's initial weights.
    device
        Where the encoder and the body live.

    Raises
    ------
    ValueError
        If the spec has an invalid input, target or architecture.

    Examples
    --------
    >>> import torch
    >>> from core.kprior import Predictor
    >>> spec = {"input": {"kind": "vector", "dim": 2}, "target": {"kind": "binary"}, "architecture": {"kind": "linear"}}
    >>> predictor = Predictor(spec)
    >>> predictor.linear, predictor.size, predictor.initial_weights().tolist()  # the last weight is the bias
    (True, 3, [0.0, 0.0, 0.0])
    >>> predictor.outputs(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64), torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    tensor([[1.5000],
            [0.5000]], dtype=torch.float64)
    """

    def __init__(self, spec: PredictorSpec, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.spec: PredictorSpec = {
            "input": copy.deepcopy(spec["input"]),
            "target": copy.deepcopy(spec["target"]),
            "architecture": copy.deepcopy(spec["architecture"]),
        }
        if "class_weight" in spec:
            self.spec["class_weight"] = dict(spec["class_weight"])
        if "loss" in spec:
            self.spec["loss"] = copy.deepcopy(spec["loss"])
        self.device = torch.device(device)
        self.family = family_of(spec["target"], spec.get("loss"))
        self.encoder = encoder_for(spec).to(self.device)
        weights = class_weights(spec["target"], spec.get("class_weight", {}))
        self._class_weight: Tensor | None = None
        if any(weight != 1 for weight in weights):
            self._class_weight = torch.tensor(weights, dtype=torch.float64, device=self.device)
        with torch.random.fork_rng(devices=[]):
            # not torch.manual_seed: it records the stack for every kind of GPU, which takes longer than all the rest
            torch.default_generator.manual_seed(seed)
            self.body = architecture_of(spec["architecture"], self.encoder.shape, self.family.outputs)
        if self.family.kinked and not isinstance(self.body, Glm):
            raise ValueError(
                f"The loss {self.family.name!r} is for linear models; networks use the default loss of their target."
            )
        self.dtype = torch.float64 if isinstance(self.body, Glm) else torch.float32
        self._shapes = {name: p.shape for name, p in self.body.named_parameters() if p.requires_grad}
        self.body.to(device=self.device, dtype=self.dtype).requires_grad_(False)
        self._norms = [m for m in self.body.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        self.batch_statistics = False
        """Whether BatchNorm layers normalise training batches by their own statistics, and learn from them."""
        self.size = sum(shape.numel() for shape in self._shapes.values())
        self._shared: dict[str, tuple[Tensor, Tensor]] | None = None

    @property
    def linear(self) -> bool:
        """Whether this is a GLM: outputs linear in the weights, and so a convex objective."""
        return isinstance(self.body, Glm)

    def initial_weights(self) -> Tensor:
        """The (P,) weights that the body was built with: zeros for GLMs, random weights for networks."""
        named = self.body.named_parameters()
        return torch.cat([p.detach().reshape(-1) for name, p in named if name in self._shapes]).clone()

    @property
    def has_statistics(self) -> bool:
        """Whether the body has BatchNorm layers, whose statistics are computed by a training from scratch."""
        return bool(self._norms)

    def constants(self) -> dict[str, Tensor]:
        """What belongs to a version besides its weights: units of the encoder, frozen parameters and buffers."""
        body = {name: tensor for name, tensor in self.body.state_dict().items() if name not in self._shapes}
        made = {f"encoder.{name}": tensor for name, tensor in self.encoder.state_dict().items()}
        return made | {f"body.{name}": tensor for name, tensor in body.items()}

    def load_constants(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `constants`, ignoring other tensors. Raises ValueError if one is missing or does not fit."""
        encoder = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}
        self.encoder.load_state_dict(encoder)
        wanted = {name: tensor for name, tensor in self.constants().items() if name.startswith("body.")}
        for name, tensor in wanted.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise ValueError(f"{name} is missing, or does not have the shape {tuple(tensor.shape)}.")
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])

    def inherit(self, other: "Predictor") -> None:
        """Take the units of another model's encoder, and what is frozen in its body if the architecture is the same."""
        self.encoder.load_state_dict(other.encoder.state_dict())
        if self.spec["architecture"] == other.spec["architecture"]:
            theirs = other.body.state_dict()
            named = self.body.state_dict().items()
            for name, tensor in named:
                if name not in self._shapes and theirs[name].shape == tensor.shape:
                    tensor.copy_(theirs[name])

    def reset_statistics(self) -> None:
        """Forget the statistics of BatchNorm layers; the next batches determine them, each with the same weight."""
        for norm in self._norms:
            norm.reset_running_stats()
            norm.momentum = None

    def initial_weights_for(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Initial (P,) weights of a network, scaled so that its outputs are about as large as its targets.

        Adam's steps have the same length whatever the targets are, so that a network that predicts house prices would
        never get there from its random weights. Where the last layer is not known, the random weights are returned.
        """
        w = self.initial_weights()
        try:
            last = Hidden(self.body).last
        except ValueError:
            return w
        start, unit = (part.to(w) for part in self.family.initial_outputs(mean, deviation))
        weights = self.unflatten(w)
        for name, parameter in self.body.named_parameters():
            if name not in weights:  # frozen
                continue
            if parameter is last.weight:
                weights[name].mul_(unit[:, None])
            elif parameter is last.bias:
                weights[name].mul_(unit).add_(start)
        return w

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """(P,) -> the body's parameters by name, as views."""
        parts = w.split([shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)}

    def bias(self) -> Tensor:
        """(P,) bool: which weights are biases (for a GLM, those of the constant feature)."""
        flags = []
        for name, shape in self._shapes.items():
            flag = torch.full(shape, name.split(".")[-1] == "bias", device=self.device)
            if self.linear:
                flag[:, -1] = True
            flags.append(flag.reshape(-1))
        return torch.cat(flags)

    def encode(self, x: Tensor) -> Tensor:
        """Raw inputs -> the body's inputs, in the predictor's precision, on its device: (n, ...) -> (n, *shape)."""
        if self._shared is not None and (known := self._shared.get("encoded")) is not None and known[0] is x:
            return known[1]
        given, x = x, x.to(self.device)
        if x.is_floating_point() and x.dtype != torch.float64:
            x = x.to(self.dtype)  # before the encoder: an image of floats is large
        out: Tensor = self.encoder(x)
        out = out.to(self.dtype)
        if self._shared is not None:
            self._shared["encoded"] = given, out
        return out

    @contextmanager
    def sharing_features(self) -> Iterator[None]:
        """Within the block, encode inputs once if several sums of a pass ask for the features of the same chunk.

        The encoder must not change within the block, nor may callers change the features.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def check(self, examples: Rows) -> None:
        """Check that rows fit this model.

        Raises
        ------
        ValueError
            If the inputs have another shape, or the targets are outside the family.
        """
        y, K = examples.y, self.family.outputs
        if y.shape[1] != K:
            raise ValueError(f"The targets have {y.shape[1]} columns, but this model has {K}.")
        if not self.family.admits(y):
            raise ValueError(f"The targets are not valid for the {self.family.name} family, or not finite.")
        if tuple(examples.x.shape[1:]) != self.encoder.raw_shape:
            raise ValueError(
                f"The inputs have shape {tuple(examples.x.shape[1:])}, but this model expects {self.encoder.raw_shape}."
            )

    def weigh(self, examples: Rows) -> Tensor | None:
        """Weight of each row in sums over rows: its own weight times that of its class; None if all are one.

        Returns
        -------
        Tensor or None
            (n,) in the predictor's precision, on its device.
        """
        weight = None if examples.weight is None else examples.weight.to(self.device, self.dtype)
        if self._class_weight is None:
            return weight
        y = examples.y.to(self.device)
        code = y.argmax(1) if y.shape[1] > 1 else (y[:, 0] > 0.5).long()
        ours = self._class_weight[code].to(self.dtype)
        return ours if weight is None else ours * weight

    def features(self, x: Tensor) -> Tensor:
        """phi(x) of a GLM: (n, D), the last column 1."""
        if not isinstance(self.body, Glm):
            raise TypeError("Only linear predictors have features.")
        if self._shared is not None and (known := self._shared.get("features")) is not None and known[0] is x:
            return known[1]
        phi = self.body.features(self.encode(x))
        if self._shared is not None:
            self._shared["features"] = x, phi
        return phi

    def last_features(self, x: Tensor, w: Tensor | None = None) -> Tensor:
        """Inputs of a network's last layer with the weights w, or those of the body: (n, D), the last column 1.

        Raises
        ------
        ValueError
            If the last layer is not known, or has no bias.
        """
        hidden = Hidden(self.body)
        if hidden.last.bias is None:
            raise ValueError("The last layer of this network has no bias.")
        weights = {} if w is None else {f"body.{name}": values for name, values in self.unflatten(w).items()}
        self.body.train(False)
        made: Tensor = functional_call(hidden, weights, (self.encode(x),))
        return torch.cat([made, torch.ones_like(made[:, :1])], 1)

    def outputs(self, w: Tensor, x: Tensor, training: bool = False) -> Tensor:
        """f(w, x), natural parameters of the family: (P,), (n, ...) -> (n, K). `training` switches dropout on."""
        return self.outputs_of_encoded(w, self.encode(x), training)

    def outputs_of_encoded(self, w: Tensor, z: Tensor, training: bool = False) -> Tensor:
        """f for encoded inputs: (P,), (n, *shape) -> (n, K). `training` switches dropout on."""
        if self.body.training != training:  # switching visits all modules
            self.body.train(training)
        for norm in self._norms:  # a single row has no variance
            norm.train(training and self.batch_statistics and len(z) > 1)
        out: Tensor = functional_call(self.body, self.unflatten(w), (z,))
        return out

    def jacobian(self, w: Tensor, x: Tensor) -> Tensor:
        """d f / d w for each row: (n, K, P)."""
        if self.linear:
            phi = self.features(x)
            eye = torch.eye(self.family.outputs, dtype=phi.dtype, device=phi.device)
            return torch.einsum("kl,nd->nkld", eye, phi).reshape(len(phi), self.family.outputs, -1)
        self.body.eval()

        def single(weights: Tensor, z: Tensor) -> Tensor:
            out: Tensor = functional_call(self.body, self.unflatten(weights), (z[None],))
            return out[0]

        rows: Tensor = vmap(jacrev(single), in_dims=(None, 0))(w, self.encode(x))
        return rows

    def layers(self) -> dict[str, nn.Module]:
        """The body's modules that hold parameters, by name."""
        return {
            name: module
            for name, module in self.body.named_modules()
            if any(f"{name}.{own}".lstrip(".") in self._shapes for own, _ in module.named_parameters(recurse=False))
        }


def encoder_for(spec: PredictorSpec) -> Encoder:
    """The encoder of a model: the splits of its trees, or that of its input."""
    architecture = spec["architecture"]
    if architecture["kind"] != "trees":
        return model_encoder(spec)
    return LeafEncoder(spec["input"], architecture.get("trees", 100), architecture.get("leaves", 31))
