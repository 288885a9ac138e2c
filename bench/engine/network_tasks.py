"""The tasks of the networks: mainly biased changes, for which doing nothing is not an option."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.engine.data import digits, mnist
from core.kprior import AddData, ChangeModel, ChangeRegularizer, Examples, RemoveData, Task
from core.kprior.model.spec import Architecture, Input, Spec

NEW, GONE, WRONG, ADDED, DAYS = 9, 8, 0.01, 0.1, 10
"""The added class, the removed class, and the fractions of wrong labels and of added rows."""
DELTA, OTHER_DELTA = 1.0, 5.0
FEW = 30
"""Rows that are removed from a small network."""
ARCHITECTURES: dict[str, Architecture] = {  # "small" has 5 450 weights
    "mlp": {"kind": "mlp", "hidden": [100, 100]},
    "lenet5": {"kind": "lenet5"},
    "small": {
        "kind": "sequential",
        "layers": [
            {"kind": "conv2d", "channels": 16, "kernel": [3, 3], "padding": [1, 1]},
            {"kind": "relu"},
            {"kind": "conv2d", "channels": 16, "kernel": [3, 3], "padding": [1, 1]},
            {"kind": "relu"},
            {"kind": "conv2d", "channels": 16, "kernel": [3, 3], "padding": [1, 1]},
            {"kind": "relu"},
            {"kind": "max_pool2d", "kernel": [4, 4], "stride": [4, 4]},
            {"kind": "flatten"},
            {"kind": "linear", "outputs": 10},
        ],
    },
}
HOLDOUT_FRACTION = 0.2
"""Test rows that the engine uses as its holdout; the others evaluate it."""


@dataclass(frozen=True)
class Images:
    """Training rows, holdout rows and test rows."""

    name: str
    train: Examples
    holdout: Examples
    test: Examples
    input: Input

    def spec(self, architecture: Architecture, delta: float = DELTA) -> Spec:
        """A model of ten classes."""
        return {
            "input": self.input,
            "target": {"kind": "classes", "values": list(range(10))},
            "architecture": architecture,
            "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": True},
        }


def images(data: Path | None, pixels: bool, max_rows: int | None = None) -> Images:
    """MNIST, or digits without a folder; as images for convolutions, else as vectors."""
    name = "digits" if data is None else "MNIST"
    rows, others = (each.examples() for each in (digits() if data is None else mnist(data)))
    if max_rows is not None:
        rows = rows.take(torch.arange(min(max_rows, len(rows))))
    looked = round(HOLDOUT_FRACTION * len(others))
    holdout, test = others.take(torch.arange(looked)), others.take(torch.arange(looked, len(others)))
    shape: Input = {"kind": "vector", "dim": rows.x.shape[1]}
    if pixels:
        side = round(rows.x.shape[1] ** 0.5)
        shape = {"kind": "image", "shape": [1, side, side]}
        rows, holdout, test = (
            Examples(each.key, each.x.view(len(each), 1, side, side), each.y) for each in (rows, holdout, test)
        )
    return Images(name, rows, holdout, test, shape)


@dataclass(frozen=True)
class NetworkTask:
    """One change of a network, in one or several jobs, and the retained rows at the end."""

    name: str
    spec: Spec
    base: Examples
    jobs: list[list[Task]]
    new_spec: Spec
    retained: Examples
    gone: int | None = None
    """The class that was removed."""
    wrong: bool = False
    """Whether the removed rows had wrong labels."""
    removed: Examples | None = field(default=None)

    def keys(self) -> tuple[str, str]:
        """Names of base and retrain: tasks that share them share the trained networks."""
        return self._key(self.spec, self.base), self._key(self.new_spec, self.retained)

    @staticmethod
    def _key(spec: Spec, rows: Examples) -> str:
        labels = int((rows.y.argmax(1) * (rows.key + 1)).sum())
        return f"{json.dumps(spec, sort_keys=True)} {len(rows)} {int(rows.key.sum())} {labels}"

    def steps(self) -> Iterator[tuple[list[Task], Examples, Examples]]:
        """Each job: its tasks, the old rows that are retained, and all rows that are retained after it."""
        rows = self.base
        for tasks in self.jobs:
            gone = [c.key for task in tasks if isinstance(task, RemoveData) for c in task.data]
            stays = rows.take(~torch.isin(rows.key, torch.cat(gone))) if gone else rows
            come = [c for task in tasks if isinstance(task, AddData) for c in task.data]
            rows = join_examples([stays, *come])
            yield tasks, stays, rows


def join_examples(parts: list[Examples]) -> Examples:
    """One `Examples` of several."""
    return Examples(*(torch.cat([getattr(part, name) for part in parts]) for name in ("key", "x", "y")))


def network_tasks(kind: str, data: Images) -> dict[str, Callable[[], NetworkTask]]:
    """All tasks of an architecture by name; each is created when it is run."""
    first = ARCHITECTURES[kind]
    spec, rows = data.spec(first), data.train
    label, count = rows.y.argmax(1), len(rows)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(7))

    def add_class() -> NetworkTask:
        new = label == NEW
        return NetworkTask("add class", spec, rows.take(~new), [[AddData([rows.take(new)])]], spec, rows)

    def remove_class() -> NetworkTask:
        gone = rows.take(label == GONE)
        job: list[Task] = [RemoveData([gone])]
        return NetworkTask("remove class", spec, rows, [job], spec, rows.take(label != GONE), GONE, removed=gone)

    def mislabelled() -> NetworkTask:
        chosen = order[: round(WRONG * count)]
        shift = torch.randint(1, 10, (len(chosen),), generator=torch.Generator().manual_seed(8))
        y = rows.y.clone()
        y[chosen] = torch.nn.functional.one_hot((label[chosen] + shift) % 10, 10).float()
        dirty, stays = Examples(rows.key, rows.x, y), torch.ones(count, dtype=torch.bool)
        stays[chosen] = False
        gone, kept = dirty.take(~stays), rows.take(stays)
        job: list[Task] = [RemoveData([gone])]
        return NetworkTask("1 % mislabelled", spec, dirty, [job], spec, kept, wrong=True, removed=gone)

    def added(days: int) -> NetworkTask:
        new = order[: round(ADDED * count)]
        old = torch.ones(count, dtype=torch.bool)
        old[new] = False
        jobs: list[list[Task]] = [[AddData([rows.take(part)])] for part in new.chunk(days)]
        return NetworkTask("10 % added" if days == 1 else f"{days} daily", spec, rows.take(old), jobs, spec, rows)

    def delta() -> NetworkTask:
        other = data.spec(first, OTHER_DELTA)
        job: list[Task] = [ChangeRegularizer(other["regularizer"])]
        return NetworkTask(f"delta {DELTA:g} -> {OTHER_DELTA:g}", spec, rows, [job], other, rows)

    def model(name: str, hidden: list[int]) -> NetworkTask:
        other: Architecture = {"kind": "mlp", "hidden": hidden}
        return NetworkTask(f"2x100 -> {name}", spec, rows, [[ChangeModel(other)]], data.spec(other), rows)

    def few_removed() -> NetworkTask:
        gone = torch.isin(rows.key, rows.key[order[:FEW]])
        left, removed = rows.take(~gone), rows.take(gone)
        job: list[Task] = [RemoveData([removed])]
        return NetworkTask(f"{FEW} removed", spec, rows, [job], spec, left, removed=removed)

    if kind == "small":
        return {"few removed": few_removed}
    out: dict[str, Callable[[], NetworkTask]] = {
        "add class": add_class,
        "remove class": remove_class,
        "mislabelled": mislabelled,
        "added": lambda: added(1),
        "delta": delta,
    }
    if kind == "mlp":
        out |= {"100": lambda: model("100", [100]), "2x200": lambda: model("2x200", [200, 200])}
    return out | {"daily": lambda: added(DAYS)}
