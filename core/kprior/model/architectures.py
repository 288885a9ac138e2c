"""The bodies of predictors: encoded inputs (n, *shape) -> outputs f (n, K).

Operators add their own by the entry point group `amend.architectures`: a callable
`(shape, outputs, **options) -> torch.nn.Module`. Code comes from installed packages only, never over REST.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import entry_points
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from .spec import Architecture

ENTRY_POINTS = "amend.architectures"
MAX_FEATURES = 1_000_000
"""Features beyond this are a typing mistake rather than a model."""
MAX_FREQUENCIES = 2**27
"""Random numbers that a kernel model may hold: a gigabyte."""
KERNELS = ("rbf", "matern")
SMOOTHNESS = (1.5, 2.5)
"""What nu of a Matern kernel may be; the first unless told."""


class Glm(nn.Module):
    """f = W phi(x), phi fixed, its last number the constant 1: the bias is the last column of W."""

    weight: nn.Parameter
    blur: float = 0.0
    """How far the features of a row can be from those of the same row in another batch, at the most."""

    def features(self, z: Tensor) -> Tensor:
        """phi: encoded inputs (n, ...) -> (n, D), the last column 1."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        return self.features(z) @ self.weight.T


class Linear(Glm):
    """A GLM on the monomials up to `degree` of chosen inputs, in the order of their degree, as tuples of inputs."""

    parents: Tensor
    lasts: Tensor

    def __init__(
        self, shape: tuple[int, ...], outputs: int, degree: int = 1, features: list[int] | None = None
    ) -> None:
        super().__init__()
        size = math.prod(shape)
        if features is not None and not all(isinstance(i, int) for i in features):
            raise ValueError("features are numbers of inputs, counted from 0")
        chosen = list(range(size)) if features is None else sorted(set(features))
        if degree < 1 or not chosen or chosen[0] < 0 or chosen[-1] >= size:
            raise ValueError(f"linear needs degree >= 1 and features within 0..{size - 1}")
        if math.comb(len(chosen) + degree, degree) > MAX_FEATURES:
            raise ValueError(f"degree {degree} of {len(chosen)} inputs gives more than {MAX_FEATURES} features")
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
    """A GLM on random Fourier features (Rahimi & Recht 2007): phi(x)'phi(y) - 1 is about k(x, y), and k(x, x) = 1.

    phi(x) = [cos(Omega z), sin(Omega z)] / sqrt(m), 1. The m = features / 2 frequencies are drawn from the kernel's
    spectral density: of the RBF kernel a Gaussian, of a Matern one Student's t with 2 nu degrees of freedom.
    They come from the seed alone and know nothing of any example.
    """

    frequencies: Tensor
    blur = 2.0**-20
    """Products are summed in another order there, and the last digit of an angle may be another: twice its 2^-21."""

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
            raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
        if nu is not None and (kernel != "matern" or nu not in SMOOTHNESS):
            raise ValueError("nu is 1.5 or 2.5, and the matern kernel's alone")
        if not isinstance(features, int) or features < 2 or features % 2 or features > MAX_FEATURES:
            raise ValueError(f"features must be an even number from 2 to {MAX_FEATURES}: a cosine and a sine each")
        if not 0 < lengthscale < math.inf:
            raise ValueError("lengthscale must be finite and above 0")
        count = features // 2
        if count * size > MAX_FREQUENCIES:
            raise ValueError(f"{features} features of {size} inputs need more than {MAX_FREQUENCIES} random numbers")
        degrees = None if kernel == "rbf" else int(2 * (nu or SMOOTHNESS[0]))
        self.register_buffer("frequencies", draw_frequencies(size, count, lengthscale, degrees, seed), persistent=False)
        self.weight = nn.Parameter(torch.zeros(outputs, features + 1))

    def features(self, z: Tensor) -> Tensor:
        angle = torch.remainder(z.flatten(1) @ self.frequencies.to(z), 2 * math.pi).float()
        # A single is enough of a feature, and is exact in what solvers keep; its sine takes a tenth of a double's time.
        scale = 1 / math.sqrt(angle.shape[1])
        made = torch.cat([angle.cos() * scale, angle.sin() * scale, torch.ones_like(angle[:, :1])], 1)
        return made.to(z)


def draw_frequencies(size: int, count: int, lengthscale: float, degrees: int | None, seed: int) -> Tensor:
    """(size, count) of a Gaussian, or of Student's t with so many degrees of freedom, by 1 / lengthscale."""
    if torch.empty(0).is_meta:  # only shapes are asked for
        return torch.empty(size, count, dtype=torch.float64)
    # the one stream of random numbers that no later release will change: a state has the seed, not the numbers
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
            raise ValueError("every hidden size must be at least 1")
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers, nn.Linear(sizes[-1], outputs))


class Convolutional(nn.Module):
    """Convolutions, then fully connected layers of the given sizes on whatever the convolutions leave."""

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        convolutions: nn.Sequential,
        sizes: list[int],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ValueError("a convolutional architecture needs image input (channels, height, width)")
        self.convolutions = convolutions
        try:
            with torch.no_grad():
                left = convolutions(torch.zeros(1, *shape)).numel()
        except RuntimeError as error:
            raise ValueError(f"images of shape {shape} are too small for this architecture") from error
        layers: list[nn.Module] = []
        for a, b in pairwise([left, *sizes]):
            layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.head = nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], outputs))

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.head(self.convolutions(z))
        return out


class Hidden(nn.Module):
    """All layers of a network but its last, which is linear: encoded inputs (n, ...) -> what that reads, (n, D)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.layers = layers_of(body)
        last = self.layers[-1] if self.layers else None
        if not isinstance(last, nn.Linear):
            raise ValueError("its last layer is not known")
        self.last = last

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            z = layer(z)
        return z


def layers_of(body: nn.Module) -> list[nn.Module]:
    """What a network does one after the other; nothing where that is not known."""
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
    "mlp": MLP,
    "cifarnet": cifarnet,
    "lenet5": lenet5,
}


def architecture_of(spec: Architecture, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build a body from its spec, with the weights that torch's generator gives now."""
    kind = spec.get("kind")
    options = {name: value for name, value in spec.items() if name != "kind"}
    if kind == "plugin":
        name = options.pop("name", None)
        found = list(entry_points(group=ENTRY_POINTS, name=str(name)))
        if not found:
            raise ValueError(f"no installed package offers the architecture {name!r} (group {ENTRY_POINTS})")
        builder = found[0].load()
    elif kind in BUILT_IN:
        builder = BUILT_IN[kind]
    else:
        raise ValueError(f"unknown architecture {kind!r}; known: {', '.join(BUILT_IN)}, plugin")
    try:
        body: nn.Module = builder(shape, outputs, **options)
    except TypeError as error:
        raise ValueError(f"architecture {kind!r} does not take these options: {error}") from error
    return body
