"""Measuring the drift of a model: of each column of its inputs, and of the champion's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.database import Database
from core.kprior import State
from core.kprior.data.schema_conversion import same_schema
from core.kprior.model.dates import format_days
from core.kprior.model.spec import Input, Spec, frozen_encoder, gives_scores, values_of
from core.models.policy import policy_of
from core.quality.drift import (
    CHANCE,
    MIN_ROWS,
    Binning,
    Counts,
    Drift,
    Numbers,
    limit_for,
    measure,
    stability_index,
)
from core.quality.drift_rows import DriftScope, DriftSide, read_reference, read_window
from core.quality.segments import name_rows
from core.tables.documents import ColumnDrift, DriftBin, DriftDocument, DriftMeasure, PredictionDrift, SegmentDrift

MAX_COLUMNS = 100
"""Columns in a report: those with the largest PSI."""
ROWS_PER_CHUNK = 1_000
"""Rows that are predicted at once."""

ColumnType = Literal["number", "boolean", "date", "category"]


@dataclass(frozen=True)
class CountedColumn:
    """A column, and how its values in the reference and in the window are counted."""

    name: str
    type: ColumnType
    labels: list[str]
    """The names of the bins, without those for unseen and missing values."""
    reference: Counts
    window: Counts

    @classmethod
    def of(cls, name: str, kind: ColumnType, sides: tuple[Numbers, Numbers], values: Sequence[object]) -> CountedColumn:
        """Count the values of a column on both sides; `values` are those of a category."""
        reference, window = sides
        binning = Binning.of_categories(reference, len(values)) if values else Binning.of_numbers(reference)
        labels = label_values(binning, values) if values else label_ranges(binning.edges, kind)
        return cls(name, kind, labels, binning.count(reference), binning.count(window))

    @property
    def psi(self) -> float:
        return stability_index(self.reference, self.window) if self.reference.any() and self.window.any() else 0.0

    def exceeds(self, chance: float) -> bool:
        """Whether it has drifted, given the probability with which chance alone may exceed the limit."""
        rows = int(self.reference.sum()), int(self.window.sum())
        used = int(((self.reference + self.window) > 0).sum())
        return min(rows) >= MIN_ROWS and self.psi > limit_for(used, *rows, chance)


@dataclass(frozen=True)
class Predicted:
    """Predictions for the rows of both sides."""

    reference: Numbers
    window: Numbers
    used: NDArray[np.bool_]
    """Which rows of the window were predicted."""

    def count(self, spec: Spec) -> CountedColumn:
        target = spec["target"]
        values = values_of(target) if target["kind"] in ("classes", "labels") and len(values_of(target)) > 1 else ()
        kind: ColumnType = "category" if values else "number"
        return CountedColumn.of("predictions", kind, (self.reference, self.window), values)

    def take(self, reference: NDArray[np.bool_], window: NDArray[np.bool_]) -> Predicted:
        """The predictions for some rows of both sides."""
        return Predicted(self.reference[reference], self.window[window[self.used]], self.used[window])


def measure_drift(database: Database, scope: DriftScope, state: State) -> DriftDocument:
    """Compare recent examples with those of the last full training, as columns and as the champion predicts them."""
    reference, window = read_reference(database, scope), read_window(database, scope)
    # the features of a frozen encoder have no meaning of their own
    encoded = frozen_encoder(scope.spec) is not None
    columns = [] if encoded else count_columns(scope.spec["input"], reference.x, window.x)
    columns.sort(key=lambda column: -column.psi)  # stable: columns with equal PSI stay in the order of the input
    listed = [report_column(column) for column in columns[:MAX_COLUMNS]]
    predicted = predict_sides(scope.spec, state, reference, window)
    predictions = predict_drift(scope.spec, state, predicted) if predicted else None
    return {
        "position": scope.model.head,
        "version": scope.champion.number,
        "reference": reference.describe(scope.trained_at),
        "window": window.describe(scope.model.head),
        "drifted": any(column["drifted"] for column in listed) or bool(predictions and predictions["drifted"]),
        "columns": listed,
        "omitted": max(0, len(columns) - MAX_COLUMNS),
        "predictions": predictions,
        "segments": measure_segments(scope, reference, window, predicted),
    }


def count_columns(given: Input, reference: Tensor, window: Tensor) -> list[CountedColumn]:
    """The columns of a table or the numbers of a vector; images and texts have none."""
    if given["kind"] == "image" or given["kind"] == "text":
        return []
    before, now = (side.double().numpy() for side in (reference, window))
    if given["kind"] == "vector":
        return [CountedColumn.of(f"x[{i}]", "number", (before[:, i], now[:, i]), ()) for i in range(given["dim"])]
    columns = []
    for i, column in enumerate(given["columns"]):
        values: Sequence[object] = ()
        if column["type"] == "category":
            values = column["values"]
        elif column["type"] == "boolean":
            values = ("false", "true")
        columns.append(CountedColumn.of(column["name"], column["type"], (before[:, i], now[:, i]), values))
    return columns


def predict_sides(spec: Spec, state: State, reference: DriftSide, window: DriftSide) -> Predicted | None:
    """What a version predicts for both sides; None if it was made for other columns or classes.

    Rows of the holdout are compared with rows of the holdout if there are enough, because a network is more confident
    about rows that it has learnt.
    """
    if not same_schema(state.spec, spec):
        return None
    used = np.ones(len(window.x), bool)
    if reference.sample == "holdout" and window.holdout.sum() >= MIN_ROWS:
        used = window.holdout
    return Predicted(predict(state, reference.x), predict(state, window.x[torch.from_numpy(used)]), used)


def predict_drift(spec: Spec, state: State, predicted: Predicted) -> PredictionDrift:
    """Drift of a version's predictions."""
    column = predicted.count(spec)
    kind: Literal["probability", "score", "number", "class"] = "class" if column.type == "category" else "number"
    if spec["target"]["kind"] == "binary":
        kind = "score" if gives_scores(state.spec) else "probability"
    found = report_measure(column, measure("predictions", column.reference, column.window))
    sizes = len(predicted.reference), len(predicted.window)
    return {**found, "type": kind, "reference_rows": sizes[0], "window_rows": sizes[1]}


def measure_segments(
    scope: DriftScope, reference: DriftSide, window: DriftSide, predicted: Predicted | None
) -> list[SegmentDrift]:
    """Drift within each segment that has enough rows on both sides, the worst first."""
    columns = policy_of(scope.model).segments
    before, now = (name_rows(scope.spec, columns, [side.x]) for side in (reference, window))
    masks = [
        (column, value, before[column] == value, now[column] == value)
        for column in before.keys() & now.keys()
        for value in np.unique(now[column]).tolist()
    ]
    masks = [entry for entry in masks if min(entry[2].sum(), entry[3].sum()) >= MIN_ROWS]
    chance = CHANCE / max(1, len(masks))  # the more segments, the more likely one of them exceeds a limit by chance
    found = []
    for column, value, old, new in masks:
        sides = reference.x[torch.from_numpy(old)], window.x[torch.from_numpy(new)]
        counted = sorted(count_columns(scope.spec["input"], *sides), key=lambda one: -one.psi)
        shifted = predicted is not None and predicted.take(old, new).count(scope.spec).exceeds(chance)
        names = [one.name for one in counted if one.exceeds(chance)]
        found.append(
            SegmentDrift(
                column=column,
                value=value,
                reference_rows=int(old.sum()),
                window_rows=int(new.sum()),
                drifted=bool(names) or shifted,
                drifted_columns=names,
                predictions_drifted=shifted,
                worst=counted[0].name if counted else None,
                psi=counted[0].psi if counted else 0.0,
            )
        )
    return sorted(found, key=lambda segment: (-segment["psi"], segment["column"], segment["value"]))


def predict(state: State, x: Tensor) -> Numbers:
    """(n,) predicted probabilities, scores or numbers; for several classes or labels the index of the likeliest one."""
    parts = []
    with torch.inference_mode():
        for some in x.split(ROWS_PER_CHUNK):
            mean = state.predictor.family.mean(state.predictor.outputs(state.w, some))
            parts.append(mean[:, 0] if mean.shape[1] == 1 else mean.argmax(1))
    return torch.cat(parts).double().cpu().numpy() if len(x) else np.zeros(0)


def report_column(column: CountedColumn) -> ColumnDrift:
    found = report_measure(column, measure(column.name, column.reference, column.window))
    return {"name": column.name, "type": column.type, **found}


def report_measure(column: CountedColumn, drift: Drift) -> DriftMeasure:
    labels = [*column.labels, "unseen", "missing"]
    counts = zip(labels, drift.reference, drift.window, strict=True)
    # unseen and missing values are listed only where there are any
    used = len(column.labels)
    bins: list[DriftBin] = [
        {"label": label, "reference": before, "window": now}
        for i, (label, before, now) in enumerate(counts)
        if i < used or before or now
    ]
    return {
        "psi": drift.psi,
        "limit": drift.limit,
        "p_value": drift.p_value,
        "drifted": drift.drifted,
        "too_few_rows": drift.too_few_rows,
        "missing": drift.missing,
        "unseen": drift.unseen,
        "bins": bins,
    }


def label_values(binning: Binning, values: Sequence[object]) -> list[str]:
    """The names of a category's bins.

    >>> label_values(Binning(categories=3, places=(1, 0, 1)), ["a", "b", "c"])
    ['b', 'other values']
    """
    if not binning.places:
        return [str(value) for value in values]
    shared = max(binning.places)
    own = {place: str(value) for place, value in zip(binning.places, values, strict=True) if place != shared}
    return [*(own[place] for place in sorted(own)), "other values"]


def label_ranges(edges: Sequence[float], kind: ColumnType) -> list[str]:
    """The names of the bins between edges.

    >>> label_ranges([0.5, 2.0], "number"), label_ranges([], "number"), label_ranges([10.0], "date")
    (['up to 0.5', '0.5 to 2', 'above 2'], ['all values'], ['up to 1970-01-11', 'above 1970-01-11'])
    """
    if not edges:
        return ["all values"]
    texts = [format_days(edge, lambda _: True) if kind == "date" else f"{edge:.4g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in zip(texts, texts[1:], strict=False)]
    return [f"up to {texts[0]}", *between, f"above {texts[-1]}"]
