"""Measuring the drift of a model: of each column of its inputs, and of the champion's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from core.database import Database
from core.kprior import State
from core.kprior.data.conversion import same_schema
from core.kprior.model.dates import format_days
from core.kprior.model.spec import Input, Spec, gives_scores
from core.quality.drift import MIN_ROWS, Binning, Counts, Drift, Numbers, measure, stability_index
from core.quality.drift_rows import DriftScope, DriftSide, read_reference, read_window
from core.tables.documents import ColumnDrift, DriftBin, DriftDocument, DriftMeasure, PredictionDrift

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
    binning: Binning
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
        return cls(name, kind, binning, labels, binning.count(reference), binning.count(window))

    @property
    def psi(self) -> float:
        return stability_index(self.reference, self.window) if self.reference.any() and self.window.any() else 0.0


def measure_drift(database: Database, scope: DriftScope, state: State) -> DriftDocument:
    """Compare recent examples with those of the last full training, as columns and as the champion predicts them."""
    reference, window = read_reference(database, scope), read_window(database, scope)
    columns = count_columns(scope.spec["input"], reference.x, window.x)
    columns.sort(key=lambda column: -column.psi)  # stable: columns with equal PSI stay in the order of the input
    listed = [report_column(column) for column in columns[:MAX_COLUMNS]]
    predictions = predict_drift(scope.spec, state, reference, window)
    return {
        "position": scope.model.head,
        "version": scope.champion.number,
        "reference": reference.describe(scope.trained_at),
        "window": window.describe(scope.model.head),
        "drifted": any(column["drifted"] for column in listed) or bool(predictions and predictions["drifted"]),
        "columns": listed,
        "omitted": max(0, len(columns) - MAX_COLUMNS),
        "predictions": predictions,
    }


def count_columns(given: Input, reference: Tensor, window: Tensor) -> list[CountedColumn]:
    """The columns of a table or the numbers of a vector; images have none."""
    if given["kind"] == "image":
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


def predict_drift(spec: Spec, state: State, reference: DriftSide, window: DriftSide) -> PredictionDrift | None:
    """Drift of a version's predictions.

    Rows of the holdout are compared with rows of the holdout if there are enough, because a network is more confident
    about rows that it has learnt.
    """
    if not same_schema(state.spec, spec):
        return None
    x = window.x
    if reference.sample == "holdout" and window.holdout.sum() >= MIN_ROWS:
        x = x[torch.from_numpy(window.holdout)]
    target = spec["target"]
    values = target["values"] if target["kind"] == "classes" else ()
    sides = predict(state, reference.x), predict(state, x)
    column = CountedColumn.of("predictions", "category" if values else "number", sides, values)
    kind: Literal["probability", "score", "number", "class"] = "class" if values else "number"
    if target["kind"] == "binary":
        kind = "score" if gives_scores(state.spec) else "probability"
    found = report_measure(column, measure("predictions", column.reference, column.window))
    return {**found, "type": kind, "reference_rows": len(sides[0]), "window_rows": len(sides[1])}


def predict(state: State, x: Tensor) -> Numbers:
    """(n,) predicted probabilities, scores or numbers; for several classes the index of the most likely one."""
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
