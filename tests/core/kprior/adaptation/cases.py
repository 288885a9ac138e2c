"""Every kind of change, alone and combined, as a base and the retrain it must lead to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Any

from torch import Tensor

from core.kprior import AddData, ChangeModel, ChangeRegularizer, Examples, RemoveData, State, Task, train
from tests.core.kprior.oracles import count_features, retrain
from tests.core.kprior.problems import (
    EVERYTHING,
    KINKED,
    LINEAR,
    QUADRATIC,
    examples_of,
    l2,
    outputs_of,
    rows,
    spec_of,
    stop_early,
    with_weights,
    without,
)

DIM = 4
SOME: dict[str, Any] = {"kind": "linear", "degree": 1, "features": [0, 2]}
OTHERS: dict[str, Any] = {"kind": "linear", "degree": 2, "features": [1, 2]}
CUBIC: dict[str, Any] = {"kind": "linear", "degree": 3, "features": [0, 1]}
RBF: dict[str, Any] = {"kind": "kernel", "kernel": "rbf", "features": 24, "lengthscale": 2.0, "seed": 5}
MATERN: dict[str, Any] = {"kind": "kernel", "kernel": "matern", "features": 30, "lengthscale": 3.0, "nu": 2.5}

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "same model": (LINEAR, LINEAR),
    "same degree 2": (QUADRATIC, QUADRATIC),
    "degree up": (LINEAR, QUADRATIC),
    "degree down": (QUADRATIC, LINEAR),
    "features dropped": (LINEAR, SOME),
    "features added": (SOME, LINEAR),
    "degree down, features dropped": (QUADRATIC, SOME),
    "other features, other degree": (OTHERS, CUBIC),
    "same kernel": (RBF, RBF),
    "another kernel": (RBF, MATERN),
    "degree 2 to a kernel": (QUADRATIC, MATERN),
    "kernel to linear": (MATERN, LINEAR),
}
REGULARIZERS = (
    "same penalty",
    "other delta",
    "bias freed",
    "bias penalised",
    "to many deltas",
    "from many deltas",
    "toward weights",
    "toward others",
)
DATA = ("same data", "add", "remove", "add and remove")


def many_deltas(kind: str, architecture: dict[str, Any]) -> dict[str, Any]:
    """A regularizer with a delta for each parameter, no two alike."""
    size = outputs_of(kind) * count_features(DIM, architecture)
    return l2([0.2 + 3.0 * ((7 * j) % 13) / 13 for j in range(size)], penalize_bias=True)


def toward_weights(kind: str, architecture: dict[str, Any], delta: float, scale: float = 1.0) -> dict[str, Any]:
    """A regularizer that draws each parameter to another number."""
    size = outputs_of(kind) * count_features(DIM, architecture)
    return {**l2(delta), "toward": [scale * (((5 * j) % 11) / 11 - 0.4) for j in range(size)]}


def everything_of(kind: str, weighted: bool = False) -> Examples:
    data = examples_of(kind, 150, DIM, seed=3)
    return with_weights(data) if weighted else data


def base_of(kind: str, weighted: bool = False) -> Examples:
    return rows(everything_of(kind, weighted), 0, 120)


@dataclass(frozen=True)
class AdaptationCase:
    """A base, the tasks, and what a retrain would be given."""

    kind: str
    model: str
    penalty: str
    data: str
    weighted: bool = False
    """Whether rows count from 1/5 to 5, and those of a class 2.5 times as much."""

    @property
    def regularizers(self) -> tuple[dict[str, Any], dict[str, Any]]:
        old, new = MODELS[self.model]
        return {
            "same penalty": (l2(1.0), l2(1.0)),
            "other delta": (l2(2.0), l2(0.5)),
            "bias freed": (l2(1.0, True), l2(1.0, False)),
            "bias penalised": (l2(1.0, False), l2(1.0, True)),
            "to many deltas": (l2(1.0), many_deltas(self.kind, new)),
            "from many deltas": (many_deltas(self.kind, old), l2(0.7)),
            "toward weights": (l2(1.0), toward_weights(self.kind, new, 20.0)),
            "toward others": (toward_weights(self.kind, old, 5.0), toward_weights(self.kind, new, 2.0, -0.5)),
        }[self.penalty]

    @property
    def everything(self) -> Examples:
        return everything_of(self.kind, self.weighted)

    @property
    def base(self) -> Examples:
        return base_of(self.kind, self.weighted)

    @property
    def retained(self) -> Examples:
        """All rows after the change."""
        after = self.everything if "add" in self.data else self.base
        return without(after, rows(self.base, 0, 25)) if "remove" in self.data else after

    @property
    def base_spec(self) -> dict[str, Any]:
        return self._with_classes(spec_of(self.kind, DIM, MODELS[self.model][0], self.regularizers[0]))

    @property
    def spec(self) -> dict[str, Any]:
        return self._with_classes(spec_of(self.kind, DIM, MODELS[self.model][1], self.regularizers[1]))

    def _with_classes(self, spec: dict[str, Any]) -> dict[str, Any]:
        classes = self.weighted and self.kind in ("binary", "classes", "squared_hinge")
        return {**spec, "class_weight": {"1": 2.5}} if classes else spec

    def tasks(self) -> list[Task]:
        tasks: list[Task] = []
        if "add" in self.data:
            tasks.append(AddData(rows(self.everything, 120, 150).chunks(20)))
        if "remove" in self.data:
            tasks.append(RemoveData(rows(self.base, 0, 25).chunks(10)))
        if self.penalty != "same penalty":
            tasks.append(ChangeRegularizer(self.regularizers[1]))
        if not self.model.startswith("same"):
            tasks.append(ChangeModel(MODELS[self.model][1]))
        return tasks

    def start(self, early: bool) -> tuple[State, Examples]:
        """The base with full memory, converged or not."""
        return start(json.dumps(self.base_spec), self.kind, early, self.weighted)

    @cached_property
    def retrained(self) -> Tensor:
        return retrain(self.spec, self.retained)


@cache  # many cases begin with the same base
def start(spec: str, kind: str, early: bool, weighted: bool) -> tuple[State, Examples]:
    data = base_of(kind, weighted)
    if early:
        return stop_early(json.loads(spec), data)
    trained = train(json.loads(spec), data.chunks(37), policy=EVERYTHING)
    return trained.state, trained.memory


def all_cases(kind: str) -> list[AdaptationCase]:
    """Every model with every penalty while data come and go, and every model with every change of data."""
    every = [AdaptationCase(kind, *options) for options in product(MODELS, REGULARIZERS, DATA)]
    chosen = [c for c in every if c.data == "add and remove" or c.penalty in ("same penalty", "other delta")]
    # a kernel is one more phi: all that a penalty can be is tried above
    brief = ("same penalty", "toward others")
    chosen = [c for c in chosen if "kernel" not in c.model or (c.data == "add and remove" and c.penalty in brief)]
    if kind in KINKED:  # what differs is how rows are read: each model once, and each penalty
        chosen = [c for c in chosen if c.data == "add and remove" and "same" in (c.model[:4], c.penalty[:4])]
    weighted = [AdaptationCase(kind, model, "other delta", "add and remove", True) for model in MODELS]
    return [c for c in (*chosen, *weighted) if c.tasks()]
