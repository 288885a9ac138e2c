"""Follows columns through the steps of a fitted pipeline. A feature is a scaled number or a scaled indicator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amend.errors import EstimatorUnsupported

MISSING = object()
"""The value of the indicator of a missing category."""
KERNEL = 'create a model with the architecture {"kind": "kernel", "lengthscale": ...} (docs/how-to/kernel-models.md)'
"""Advice for kernels, which cannot be imported."""
NUMBER = object()
"""In place of a category's value: the feature is a number."""


@dataclass(frozen=True)
class Feature:
    """(x - mean) / scale, where x is a number, or the indicator of one value of a category."""

    column: int
    """Index of the input column."""
    value: Any = NUMBER
    mean: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        return self.value is NUMBER


def is_a(thing: Any, *names: str) -> bool:
    """Whether an object is an instance of a class of scikit-learn or torch, given by name."""
    ours = {c.__name__ for c in type(thing).__mro__ if c.__module__.split(".")[0] in ("sklearn", "torch")}
    return not ours.isdisjoint(names)


def split_pipeline(estimator: Any) -> tuple[list[Any], Any]:
    """Split a pipeline into its transformers and the final estimator."""
    if not is_a(estimator, "Pipeline"):
        return [], estimator
    steps = [step for _, step in estimator.steps if step not in (None, "passthrough")]
    more, last = split_pipeline(steps[-1]) if steps else ([], None)
    return [*steps[:-1], *more], last


def transform(features: list[Feature], transformer: Any, names: Sequence[str] | None) -> list[Feature]:
    """The features after a transformer. `names` are the names of the inputs, if they have any."""
    if transformer in (None, "passthrough") or is_identity(transformer):
        return features
    if transformer == "drop":
        return []
    if is_a(transformer, "Pipeline"):
        for _, step in transformer.steps:
            features = transform(features, step, names)
        return features
    if is_a(transformer, "ColumnTransformer"):
        given = input_names(transformer, names)
        return [
            feature
            for _, part, columns in transformer.transformers_
            for feature in transform([features[i] for i in column_indices(columns, given, len(features))], part, names)
        ]
    if is_a(transformer, "StandardScaler"):
        return scale_by(features, transformer)
    if is_a(transformer, "OneHotEncoder"):
        return indicate(features, transformer)
    if is_a(transformer, "RBFSampler", "Nystroem"):
        name = type(transformer).__name__
        raise EstimatorUnsupported(
            f"A {name} cannot be imported, because Amend draws its own features. Instead, {KERNEL}."
        )
    raise EstimatorUnsupported(
        f"A {type(transformer).__name__} cannot be imported. Supported steps: StandardScaler, OneHotEncoder, "
        "ColumnTransformer and Pipeline."
    )


def is_identity(transformer: Any) -> bool:
    return is_a(transformer, "FunctionTransformer") and transformer.func is None


def input_names(transformer: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    """The column names that a transformer was fitted with."""
    found = getattr(transformer, "feature_names_in_", None)
    return names if found is None else list(found)


def column_indices(columns: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """The indices of columns that a ColumnTransformer selects."""
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):
            raise EstimatorUnsupported("A slice of named columns cannot be imported. List the columns.")
        return list(range(count))[columns]
    listed = [columns] if isinstance(columns, str | int) else list(columns)
    if listed and all(str(flag) in ("True", "False") for flag in listed):
        return [i for i, flag in enumerate(listed) if flag]
    if any(isinstance(column, str) for column in listed):
        if names is None:
            raise EstimatorUnsupported("The pipeline selects columns by name. Pass the rows as a frame.")
        return [list(names).index(str(column)) for column in listed]
    return [int(column) % count for column in listed]


def scale_by(features: list[Feature], scaler: Any) -> list[Feature]:
    """Features after a StandardScaler."""
    means = [0.0] * len(features) if scaler.mean_ is None or not scaler.with_mean else scaler.mean_
    scales = [1.0] * len(features) if scaler.scale_ is None else scaler.scale_
    require(len(means) == len(features), "A StandardScaler was fitted on a different number of columns.")
    return [
        replace(f, mean=f.mean + f.scale * float(m), scale=f.scale * float(s))
        for f, m, s in zip(features, means, scales, strict=True)
    ]


def indicate(features: list[Feature], encoder: Any) -> list[Feature]:
    """Features after a OneHotEncoder."""
    # The weight of a dropped value is not penalised, which is a different objective.
    require(encoder.drop is None, "A OneHotEncoder with `drop` cannot be imported. Fit it with drop=None.")
    rare = encoder.min_frequency is not None or encoder.max_categories is not None
    require(not rare, "A OneHotEncoder that groups infrequent values cannot be imported.")
    require(len(encoder.categories_) == len(features), "A OneHotEncoder was fitted on a different number of columns.")
    require(
        all(f.is_number and (f.mean, f.scale) == (0.0, 1.0) for f in features),
        "A OneHotEncoder must be the first step for its columns.",
    )
    return [
        Feature(feature.column, plain_category(value))
        for feature, values in zip(features, encoder.categories_, strict=True)
        for value in values
    ]


def plain_category(value: Any) -> Any:
    """A category as text or a whole number; MISSING for a missing value."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return plain_value(value)


def plain_value(value: Any) -> int | str:
    """A value of a category or a class as text or a whole number.

    >>> plain_value(2.0), plain_value("paid")
    (2, 'paid')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise EstimatorUnsupported(f"The value {value!r} is neither text nor a whole number.")
    return value


def require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise EstimatorUnsupported(otherwise)
