"""The data: any number of generated rows, generated embeddings, MNIST, digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.kprior import Examples
from core.kprior.model.spec import Architecture, Spec, Target

Array = NDArray[Any]
PIECE = 100_000
"""Rows that are generated at once."""
CHUNK = 10_000
"""Rows of a chunk that the engine reads."""


@dataclass(frozen=True)
class Rows:
    """Labelled rows in memory, which can be sliced without a copy; the engine reads them chunk by chunk."""

    x: Array
    """(n, D) float32; of images (n, C, H, W) uint8."""
    y: Array
    """(n,) int64, classes from 0."""
    classes: int
    first: int = 0
    """The key of the first row."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.x[part], self.y[part], self.classes, self.first + part.indices(len(self))[0])

    def __iter__(self) -> Iterator[Examples]:
        for start in range(0, len(self), CHUNK):
            key = torch.arange(start, min(len(self), start + CHUNK))
            yield Examples(key + self.first, *self._tensors(slice(start, start + CHUNK)))

    def _tensors(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.from_numpy(self.y[part])
        targets = y[:, None].float() if self.classes == 2 else torch.nn.functional.one_hot(y, self.classes).float()
        return torch.from_numpy(self.x[part]), targets

    def examples(self) -> Examples:
        """All of them at once."""
        return Examples(torch.arange(len(self)) + self.first, *self._tensors(slice(None)))

    def moved_to_front(self, chosen: Array) -> Rows:
        """The same rows with the chosen ones first, so that the remaining rows are a slice."""
        rest = np.ones(len(self), bool)
        rest[chosen] = False
        order = np.concatenate([chosen, np.nonzero(rest)[0]])
        return Rows(self.x[order], self.y[order], self.classes, self.first)


def logistic_rows(count: int, dim: int, seed: int = 0) -> Rows:
    """Correlated features and noisy labels, generated in pieces to save memory."""
    random = np.random.default_rng(seed)
    truth = random.standard_normal(dim).astype(np.float32) * 0.3
    x, y = np.empty((count, dim), np.float32), np.empty(count, np.int64)
    for start in range(0, count, PIECE):
        part = x[start : start + PIECE]
        random.standard_normal(out=part, dtype=np.float32)
        part[:, 1:] += 0.5 * part[:, :-1]
        y[start : start + PIECE] = random.random(len(part)) < 1 / (1 + np.exp(-(part @ truth)))
    return Rows(x, y, 2)


def curved_rows(count: int, dim: int, seed: int = 0) -> Rows:
    """Labels that no linear model explains: waves, products and squares of the first inputs."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, dim), np.float32)
    f = 2 * np.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2 - 1
    return Rows(x, (random.random(count) < 1 / (1 + np.exp(-2 * f))).astype(np.int64), 2)


def embeddings(dim: int, classes: int, count: int, distance: float, seed: int = 0) -> Rows:
    """Rows like embeddings: class means, noise that is large in few directions, rows of different lengths."""
    random = np.random.default_rng(seed)
    scale = np.arange(1, dim + 1) ** -0.7
    scale *= np.sqrt(dim / (scale**2).sum())  # the mean variance of a feature is one
    turn = np.linalg.qr(random.standard_normal((dim, dim)))[0]
    means = random.standard_normal((classes, dim)) * scale**0.75  # classes differ in small directions as well
    means *= distance / np.sqrt(2 * np.mean(((means / scale) ** 2).sum(1)))
    weights = random.uniform(0.5, 1.5, classes)
    y = random.choice(classes, count, p=weights / weights.sum())
    centre = 0.3 * random.standard_normal(dim)
    x = np.empty((count, dim), np.float32)
    for start in range(0, count, PIECE):
        part = y[start : start + PIECE]
        noise = random.standard_normal((len(part), dim)) * scale * random.gamma(4, 0.25, (len(part), 1)) ** 0.5
        x[start : start + PIECE] = (means[part] + noise) @ turn + centre
    return Rows(x, y.astype(np.int64), classes)


def independent_rows(dim: int, classes: int, count: int, seed: int = 0) -> Rows:
    """Independent columns, which determine every weight about equally well; labels from a softmax of them."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, dim), np.float32)
    f = x @ random.standard_normal((dim, classes)) * (3 / np.sqrt(dim))
    odds = np.exp(f - f.max(1, keepdims=True))
    reached = odds.cumsum(1) > random.random((count, 1)) * odds.sum(1, keepdims=True)
    return Rows(x, reached.argmax(1).astype(np.int64), classes)


@cache
def mnist(folder: Path) -> tuple[Rows, Rows]:
    """Training and test rows of mnist.npz, pixels from 0 to 1."""
    with np.load(folder / "mnist.npz") as file:
        x, y, tx, ty = (file[name] for name in ("x", "y", "tx", "ty"))
    train, test = ((pixels.reshape(len(pixels), -1) / 255).astype(np.float32) for pixels in (x, tx))
    return Rows(train, y.astype(np.int64), 10), Rows(test, ty.astype(np.int64), 10, len(train))


@cache
def digits() -> tuple[Rows, Rows]:
    """scikit-learn's digits in a random order: 1 397 training and 400 test rows."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    every = Rows((x[order] / 16).astype(np.float32), y[order].astype(np.int64), 10)
    return every[:1397], every[1397:]


def spec_of(
    dim: int, classes: int, delta: float, penalize_bias: bool, architecture: Architecture | None = None
) -> Spec:
    """A model of these rows, linear by default."""
    target: Target = {"kind": "binary"} if classes == 2 else {"kind": "classes", "values": list(range(classes))}
    return {
        "input": {"kind": "vector", "dim": dim},
        "target": target,
        "architecture": architecture or {"kind": "linear", "degree": 1},
        "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": penalize_bias},
    }
