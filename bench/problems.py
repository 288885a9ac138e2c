"""The paper's data sets and tasks, with its settings.

The paper's softmax has two outputs and delta/2 |w|^2 over both; with one logit that is half the delta, the constant
feature penalised like the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.images import SHAPE, cifar10, coloured_digits
from core.kprior import AddData, ChangeModel, ChangeRegularizer, Examples, RemoveData, Task
from core.kprior.model.spec import Architecture, Regularizer, Spec

TASKS = ("add", "remove", "regularizer", "model")
IMAGE_TASKS = ("add", "regularizer", "model")
FRACTIONS = (1.0, 0.5, 0.2, 0.1, 0.07, 0.05, 0.02)
FEWER_FRACTIONS = (0.5, 0.2, 0.1, 0.05, 0.02)
"""Memory sizes for many images; with all of them in memory it would be a retrain."""


@dataclass(frozen=True)
class Problem:
    """One task on one data set: the base, the change, and the data of a retrain."""

    name: str
    task: str
    spec: Spec
    base: Examples
    tasks: list[Task]
    new_spec: Spec
    retained: Examples
    test: Examples
    key: str = field(default="")
    """Problems with the same key start from the same base model."""

    @property
    def past(self) -> Examples:
        """Retained rows of the base."""
        gone = [c.key for t in self.tasks if isinstance(t, RemoveData) for c in t.data]
        return self.base.take(~torch.isin(self.base.key, torch.cat(gone))) if gone else self.base

    @property
    def labels(self) -> Tensor:
        """The classes of the test rows."""
        y = self.test.y
        return y.argmax(1) if y.shape[1] > 1 else y[:, 0].long()


def spec(dim: int, architecture: Architecture, delta: float) -> Spec:
    """A binary model on vectors with the paper's delta."""
    return {
        "input": {"kind": "vector", "dim": dim},
        "target": {"kind": "binary"},
        "architecture": architecture,
        "regularizer": regularizer(delta),
    }


def regularizer(delta: float) -> Regularizer:
    """The paper's delta for two outputs, as ours for one."""
    return {"kind": "l2", "delta": delta / 2, "penalize_bias": True}


def usps(folder: Path, task: str, network: bool) -> Problem:
    """Odd or even digits: digit 9 added, digit 8 removed, delta or the model changed."""
    data, digit, test, test_digit = usps_data(folder)
    small: Architecture = {"kind": "mlp", "hidden": [100]} if network else {"kind": "linear", "degree": 1}
    large: Architecture = {"kind": "mlp", "hidden": [100, 100]} if network else {"kind": "linear", "degree": 2}
    old, new = (5.0, 10.0) if network else (50.0, 5.0)
    plain = spec(256, small, old)
    name = "usps-mlp" if network else "usps-linear"
    if task == "add":
        nine = digit == 9
        return Problem(name, task, plain, data.take(~nine), [AddData([data.take(nine)])], plain, data, test, "no 9")
    if task == "remove":
        eight = digit == 8
        removal: list[Task] = [RemoveData([data.take(eight)])]
        return Problem(name, task, plain, data, removal, plain, data.take(~eight), test.take(test_digit != 8), "all")
    if task == "regularizer":
        change: list[Task] = [ChangeRegularizer(regularizer(new))]
        return Problem(name, task, plain, data, change, spec(256, small, new), data, test, "all")
    return Problem(name, task, spec(256, large, old), data, [ChangeModel(small)], plain, data, test, "large")


@cache
def usps_data(folder: Path) -> tuple[Examples, Tensor, Examples, Tensor]:
    with np.load(folder / "usps.npz") as file:
        x, y, test_x, test_y = (torch.tensor(file[k]) for k in ("train_x", "train_y", "test_x", "test_y"))
    return examples(x, y % 2), y, examples(test_x, test_y % 2), test_y


def examples(x: Tensor, y: Tensor) -> Examples:
    """Rows with their position as the key."""
    return Examples(torch.arange(len(x)), x.float(), y.float()[:, None])


def mnist(folder: Path, task: str, rows: int | None) -> Problem:
    """Ten digits with the paper's appendix: a random tenth added, delta 1 to 5, two hidden layers to one.

    The paper removes nothing here; digit 8 is removed, as of USPS.
    """
    data, test = mnist_data(folder, rows)
    large: Architecture = {"kind": "mlp", "hidden": [100, 100]}
    small: Architecture = {"kind": "mlp", "hidden": [100]}
    plain, digit = mnist_spec(large, 1.0), data.y.argmax(1)
    if task == "add":
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        base, added = data.take(order[len(data) // 10 :]), data.take(order[: len(data) // 10])
        return Problem("mnist-mlp", task, plain, base, [AddData([added])], plain, data, test, "mnist part")
    if task == "remove":
        removal: list[Task] = [RemoveData([data.take(digit == 8)])]
        others = test.take(test.y.argmax(1) != 8)
        return Problem("mnist-mlp", task, plain, data, removal, plain, data.take(digit != 8), others, "mnist")
    if task == "regularizer":
        new = mnist_spec(large, 5.0)
        change: list[Task] = [ChangeRegularizer(new["regularizer"])]
        return Problem("mnist-mlp", task, plain, data, change, new, data, test, "mnist")
    return Problem("mnist-mlp", task, plain, data, [ChangeModel(small)], mnist_spec(small, 1.0), data, test, "mnist")


def mnist_spec(architecture: Architecture, delta: float) -> Spec:
    """Ten classes, the bias penalised as in the paper."""
    return {
        "input": {"kind": "vector", "dim": 784},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": True},
    }


@cache
def mnist_data(folder: Path, rows: int | None) -> tuple[Examples, Examples]:
    """Training rows, the first of them if they are too many, and test rows."""
    from bench.engine.data import mnist as read

    train, test = read(folder)
    return train[:rows].examples(), test.examples()


def images(folder: Path | None, task: str, rows: int | None) -> Problem:
    """The paper's appendix for CIFAR-10: a random tenth added, delta 1 to 0.5, CifarNet to LeNet5.

    Without a folder, on digits that have the shape of CIFAR-10's images.
    """
    name = "digits-cifarnet" if folder is None else "cifar-cifarnet"
    first, last = coloured_digits() if folder is None else cifar10(folder)
    data, test = first[:rows].examples(), last.examples()
    plain = image_spec({"kind": "cifarnet"}, 1.0)
    if task == "add":
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
        base, added = data.take(order[len(data) // 10 :]), data.take(order[: len(data) // 10])
        return Problem(name, task, plain, base, [AddData([added])], plain, data, test, "images part")
    if task == "regularizer":
        new = image_spec({"kind": "cifarnet"}, 0.5)
        change: list[Task] = [ChangeRegularizer(new["regularizer"])]
        return Problem(name, task, plain, data, change, new, data, test, "images")
    small: Architecture = {"kind": "lenet5"}
    return Problem(name, task, plain, data, [ChangeModel(small)], image_spec(small, 1.0), data, test, "images")


def image_spec(architecture: Architecture, delta: float) -> Spec:
    """Ten classes of images of CIFAR-10's shape."""
    return {
        "input": {"kind": "image", "shape": list(SHAPE)},
        "target": {"kind": "classes", "values": list(range(10))},
        "architecture": architecture,
        "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": True},
    }


def adult(folder: Path, task: str, seed: int) -> Problem:
    """A random tenth of UCI Adult: a tenth of it added, the 100 rows of highest h' removed, delta or degree changed."""
    whole, test = libsvm(folder / "a7a"), libsvm(folder / "a7a.t")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    data = whole.take(order[:1610])
    linear: Architecture = {"kind": "linear", "degree": 1}
    plain = spec(123, linear, 5.0)
    key = f"adult {seed}"
    if task == "add":
        base, added = data.take(torch.arange(1449)), data.take(torch.arange(1449, 1610))
        return Problem("adult", task, plain, base, [AddData([added])], plain, data, test, f"{key} part")
    if task == "remove":
        from core.kprior import train

        state = train(plain, [data]).state
        variance = state.predictor.family.variance(state.predictor.outputs(state.w, data.x))[:, 0]
        gone = torch.zeros(len(data), dtype=torch.bool)
        gone[variance.topk(100).indices] = True
        removal: list[Task] = [RemoveData([data.take(gone)])]
        return Problem("adult", task, plain, data, removal, plain, data.take(~gone), test, key)
    if task == "regularizer":
        change: list[Task] = [ChangeRegularizer(regularizer(5.0))]
        return Problem("adult", task, spec(123, linear, 50.0), data, change, plain, data, test, f"{key} 50")
    large = spec(123, {"kind": "linear", "degree": 2}, 5.0)
    return Problem("adult", task, large, data, [ChangeModel(linear)], plain, data, test, f"{key} large")


@cache
def libsvm(path: Path) -> Examples:
    """A file of binary features in libsvm's format."""
    rows = [line.split() for line in path.read_text().splitlines()]
    x = torch.zeros(len(rows), 123)
    for i, row in enumerate(rows):
        x[i, [int(item.split(":")[0]) - 1 for item in row[1:]]] = 1
    return examples(x, torch.tensor([float(row[0]) > 0 for row in rows]))
