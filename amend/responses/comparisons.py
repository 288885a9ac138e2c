"""Versions beside each other: adapted and retrained, or any two of a model."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from amend.responses.base import Answer
from amend.responses.versions import Cost


class Sides(Answer, frozen=True):
    """A figure of the adapted version and of the full retrain."""

    adapted: float
    retrained: float
    difference_se: float | None = None
    """The standard error of their difference: the rows are the same."""


class Costs(Answer, frozen=True):
    """The cost of the adapted version and of the full retrain."""

    adapted: Cost
    retrained: Cost


class Comparison(Answer, frozen=True):
    """An adapted version and a full retrain at the same position."""

    position: int
    adapted: int
    retrained: int
    within_tolerance: bool
    created_at: datetime
    accuracy: Sides | None = None
    loss: Sides | None = None
    rows: int | None = None
    disagreement: float | None = None
    disagreement_se: float | None = None
    """Its standard error."""
    weight_distance: float | None = None
    cost: Costs | None = None
    speedup: float | None = None
    worse: str | None = None
    """In which figure the retrained version is worse on the holdout, by more than chance would have it."""
    took_over: bool = False
    """Whether adaptations go on from the retrained version."""
    outcome: str = ""
    """What became of the retrained version, and why."""


class Side(Answer, frozen=True):
    """One of the two."""

    version: int
    kind: str
    method: str
    position: int
    state: str
    spec: dict[str, Any]


class Difference(Answer, frozen=True):
    """A part of the spec that is not the same in both, as ``regularizer.delta``."""

    field: str
    a: Any
    b: Any


class Figure(Answer, frozen=True):
    """A figure of both, on the same rows."""

    a: float
    b: float
    difference_se: float | None = None


class Coefficient(Answer, frozen=True):
    """What a feature adds to the output (of a class); None where the architecture has no such feature."""

    feature: str
    a: float | None
    b: float | None
    class_: int | str | None = msgspec.field(default=None, name="class")


class SideBySide(Answer, frozen=True):
    """Two versions on the same sample of the holdout."""

    a: Side
    b: Side
    differences: list[Difference]
    """Between the specs."""
    rows: int
    """Of the holdout; 0: there is none, and nothing was measured."""
    figures: dict[str, Figure]
    disagreement: float | None
    """The share of predictions that differ; of numbers, how far, relative to the targets' spread."""
    disagreement_se: float | None
    largest_change: float | None
    """Of any prediction."""
    weight_distance: float | None
    coefficients: list[Coefficient] | None
    """Of linear models: those that differ most. None for others, and for keys that may not read weights."""
    coefficients_total: int | None
