"""The bodies of predictors: encoded inputs (n, *shape) -> outputs f (n, K).

Operators add their own through the entry point group `amend.architectures`: a callable
`(shape, outputs, **options) -> torch.nn.Module`. Code comes from installed packages only, never over REST.
"""

import math
from collections.abc import Callable
from importlib.metadata import entry_points
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from .glm import Glm as Glm
from .sequential import sequential
from .spec import Architecture
from .tree_leaves import Leaves

ENTRY_POINTS = "amend.architectures"
MAX_FEATURES = 1_000_000
"""A spec that asks for more features is probably a typing mistake."""
MAX_FREQUENCIES = 2**27
"""Maximum number of random frequencies of a kernel model: one gigabyte."""
KERNELS = ("rbf", "matern")
SMOOTHNESS = (1.5, 2.5)
"""Values that nu of a Matern kernel can have; the first is the default."""


class Linear(Glm):
    """A GLM on the monomials of chosen inputs up to `degree`, ordered by degree and then as tuples of inputs."""

    parents: Tensor
    lasts: Tensor

    def __init__(
        self, shape: tuple[int, ...], outputs: int, degree: int = 1, features: list[int] | None = None
    ) -> None:
        super().__init__()
        size = math.prod(shape)
        if features is not None and not all(isinstance(i, int) for i in features):
            raise ValueError("Features must be indices of inputs, counted from 0.")
        chosen = list(range(size)) if features is None else sorted(set(features))
        if degree < 1 or not chosen or chosen[0] < 0 or chosen[-1] >= size:
            raise ValueError(f"A linear architecture needs degree >= 1 and features within 0..{size - 1}.")
        if math.comb(len(chosen) + degree, degree) > MAX_FEATURES:
            raise ValueError(f"Degree {degree} of {len(chosen)} inputs gives more than {MAX_FEATURES} features.")
        # a monomial of degree t is one of degree t - 1 (its parent) times an input not before the parent's last
        monomials: list[tuple[int, ...]] = [(i,) for i in chosen]
        parents, lasts, first = [], [], 0
        for _ in range(degree - 1):
            end = len(monomials)
            for p in range(first, end):
                for i in chosen[chosen.index(monomials[p][-1]) :]:
                    parents.append(p)
                    lasts.append(i)
                    monomials.append((*monomials[p], i))
            first = end
        self.monomials = [*monomials, ()]
        self.degree = degree
        self.chosen = None if features is None else torch.tensor(chosen)
        self.levels = [math.comb(len(chosen) + t - 1, t) for t in range(2, degree + 1)]
        self.register_buffer("parents", torch.tensor(parents, dtype=torch.long), persistent=False)
        self.register_buffer("lasts", torch.tensor(lasts, dtype=torch.long), persistent=False)
        self.weight = nn.Parameter(torch.zeros(outputs, len(self.monomials)))

    def features(self, z: Tensor) -> Tensor:
        z = z.flatten(1)
        parts = [z if self.chosen is None else z[:, self.chosen.to(z.device)]]
        start = 0
        for size in self.levels:
            index = slice(start, start + size)
            built = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            parts.append(built[:, self.parents[index]] * z[:, self.lasts[index]])
            start += size
        parts.append(torch.ones_like(z[:, :1]))
        return torch.cat(parts, 1)


class Kernel(Glm):
    """A GLM on random Fourier features (Rahimi & Recht 2007): phi(x)'phi(y) - 1 approximates k(x, y), and k(x, x) = 1.

    phi(x) = [cos(Omega z), sin(Omega z)] / sqrt(m), 1. The m = features / 2 frequencies are drawn from the kernel's
    spectral density: a Gaussian for the RBF kernel, Student's t with 2 nu degrees of freedom for a Matern kernel.
    They depend on the seed alone, not on any example.
    """

    frequencies: Tensor
    blur = 2.0**-20
    """Another batch may sum products in another order, which can change the last digit of an angle: twice its 2^-21."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        kernel: str = "rbf",
        features: int = 1024,
        lengthscale: float = 1.0,
        nu: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        size = math.prod(shape)
        if kernel not in KERNELS:
            raise ValueError(f"Unknown kernel {kernel!r}. Choose one of: {', '.join(KERNELS)}.")
        if nu is not None and (kernel != "matern" or nu not in SMOOTHNESS):
            raise ValueError("nu must be 1.5 or 2.5, and only the matern kernel has it.")
        if not isinstance(features, int) or features < 2 or features % 2 or features > MAX_FEATURES:
            raise ValueError(f"features must be an even number from 2 to {MAX_FEATURES}: half are cosines, half sines.")
        if not 0 < lengthscale < math.inf:
            raise ValueError("lengthscale must be finite and above 0.")
        count = features // 2
        if count * size > MAX_FREQUENCIES:
            raise ValueError(f"{features} features of {size} inputs need more than {MAX_FREQUENCIES} random numbers.")
        degrees = None if kernel == "rbf" else int(2 * (nu or SMOOTHNESS[0]))
        self.register_buffer("frequencies", draw_frequencies(size, count, lengthscale, degrees, seed), persistent=False)
        self.weight = nn.Parameter(torch.zeros(outputs, features + 1))

    def features(self, z: Tensor) -> Tensor:
        angle = torch.remainder(z.flatten(1) @ self.frequencies.to(z), 2 * math.pi).float()
        # float32 is precise enough for a feature and exact in what solvers store, and ten times as fast as float64.
        scale = 1 / math.sqrt(angle.shape[1])
        made = torch.cat([angle.cos() * scale, angle.sin() * scale, torch.ones_like(angle[:, :1])], 1)
        return made.to(z)


def draw_frequencies(size: int, count: int, lengthscale: float, degrees: int | None, seed: int) -> Tensor:
    """Draw (size, count) frequencies from a Gaussian, or from Student's t with `degrees`, scaled by 1 / lengthscale."""
    if torch.empty(0).is_meta:  # only the shapes are needed
        return torch.empty(size, count, dtype=torch.float64)
    # NumPy guarantees this stream of random numbers for all releases: a state stores the seed, not the numbers
    stream = np.random.RandomState(seed)
    drawn = torch.from_numpy(stream.standard_normal((size, count)) / lengthscale)
    if degrees is None:
        return drawn
    return drawn * torch.from_numpy(np.sqrt(degrees / (stream.standard_normal((degrees, count)) ** 2).sum(0)))


class MLP(nn.Sequential):
    """Fully connected layers with ReLU between them."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden: list[int] | None = None) -> None:
        sizes = [math.prod(shape), *([100] if hidden is None else hidden)]
        if min(sizes) < 1:
            raise ValueError("Every hidden size must be at least 1.")
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-1], outputs))


class Convolutional(nn.Module):
    """Convolutions, followed by fully connected layers of the given sizes."""

    def __init__(
        self, shape: tuple[int, ...], outputs: int, convolutions: nn.Sequential, sizes: list[int], dropout: float = 0.0
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError("A convolutional architecture needs image input (channels, height, width).")
        self.convolutions = convolutions
        try:
            with torch.no_grad():
                left = convolutions(torch.zeros(1, *shape)).numel()
        except RuntimeError as error:
            raise ValueError(f"Images of shape {shape} are too small for this architecture.") from error
        layers: list[nn.Module] = []
        for a, b in pairwise([left, *sizes]):
            layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.head = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], outputs))

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.head(self.convolutions(z))
        return out


class Hidden(nn.Module):
    """All layers of a network but the last, linear one: encoded inputs (n, ...) -> its inputs (n, D)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.layers = layers_of(body)
        last = self.layers[-1] if self.layers else None
        if not isinstance(last, nn.Linear):
            raise ValueError("The last layer of this network is not known.")
        self.last = last

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            z = layer(z)
        return z


def layers_of(body: nn.Module) -> list[nn.Module]:
    """The layers of a network in order; empty if they are not known."""
    if isinstance(body, Convolutional):
        return [body.convolutions, *body.head]
    return list(body) if isinstance(body, nn.Sequential) else []


def cifarnet(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CifarNet of Zenke et al. (2017): two blocks of two convolutions, one hidden layer of 512, dropout."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (32, 64):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Dropout(0.25)]
        channels = width
    return Convolutional(shape, outputs, nn.Sequential(*layers), [512], dropout=0.5)


def lenet5(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The LeNet5-style network of the paper's Appendix E.1: 6 and 16 filters of 5x5, then 120 and 84 units."""
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (6, 16):
        layers += [nn.Conv2d(channels, width, 5), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return Convolutional(shape, outputs, nn.Sequential(*layers), [120, 84])


BUILT_IN: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "kernel": Kernel,
    "trees": Leaves,
    "mlp": MLP,
    "cifarnet": cifarnet,
    "lenet5": lenet5,
    "sequential": sequential,
}


def architecture_of(spec: Architecture, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a body from its spec, with initial weights from torch's random generator."""
    kind = spec.get("kind")
    # a frozen encoder produces the inputs of the body
    options = {name: value for name, value in spec.items() if name not in ("kind", "encoder")}
    if kind == "plugin":
        name = options.pop("name", None)
        found = list(entry_points(group=ENTRY_POINTS, name=str(name)))
        if not found:
            raise ValueError(
                f"No installed package provides the architecture {name!r} (entry point group {ENTRY_POINTS})."
            )
        builder = found[0].load()
    elif kind in BUILT_IN:
        builder = BUILT_IN[kind]
    else:
        raise ValueError(f"Unknown architecture {kind!r}. Choose one of: {', '.join(BUILT_IN)}, plugin.")
    try:
        body: nn.Module = builder(shape, outputs, **options)
    except TypeError as error:
        raise ValueError(f"Architecture {kind!r} does not accept these options: {error}.") from error
    return body
