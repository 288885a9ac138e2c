"""What the steps of a fitted pipeline make of columns: each feature is a number or an indicator, shifted and scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amend.errors import EstimatorUnsupported

MISSING = object()
"""The value of an indicator that is 1 where the category is missing."""
KERNEL = 'create a model with the architecture {"kind": "kernel", "lengthscale": ...} (docs/kernel-models.md)'
"""What there is in place of somebody else's kernel."""
NUMBER = object()
"""In place of a value: the feature is the number itself."""


@dataclass(frozen=True)
class Feature:
    """(x - mean) / scale, of a number x, or of the indicator that a category has one value."""

    column: int
    """Its place among the inputs."""
    value: Any = NUMBER
    mean: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        return self.value is NUMBER


def is_a(thing: Any, *names: str) -> bool:
    """Whether something is of a class of scikit-learn or torch, or of one made of it."""
    ours = {c.__name__ for c in type(thing).__mro__ if c.__module__.split(".")[0] in ("sklearn", "torch")}
    return not ours.isdisjoint(names)


def split_pipeline(estimator: Any) -> tuple[list[Any], Any]:
    """The transformers before an estimator, and the estimator."""
    if not is_a(estimator, "Pipeline"):
        return [], estimator
    steps = [step for _, step in estimator.steps if step not in (None, "passthrough")]
    more, last = split_pipeline(steps[-1]) if steps else ([], None)
    return [*steps[:-1], *more], last


def transform(features: list[Feature], transformer: Any, names: Sequence[str] | None) -> list[Feature]:
    """The features after a transformer; `names` are the inputs' own, where they have any."""
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
            made
            for _, part, columns in transformer.transformers_
            for made in transform([features[i] for i in column_indices(columns, given, len(features))], part, names)
        ]
    if is_a(transformer, "StandardScaler"):
        return scale_by(features, transformer)
    if is_a(transformer, "OneHotEncoder"):
        return indicate(features, transformer)
    if is_a(transformer, "RBFSampler", "Nystroem"):
        name = type(transformer).__name__
        raise EstimatorUnsupported(f"a {name} cannot be imported, for Amend draws features of its own: {KERNEL}")
    raise EstimatorUnsupported(
        f"a {type(transformer).__name__} cannot be imported; known steps: StandardScaler, OneHotEncoder, "
        "ColumnTransformer, Pipeline"
    )


def is_identity(transformer: Any) -> bool:
    return is_a(transformer, "FunctionTransformer") and transformer.func is None


def input_names(transformer: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names that a transformer was fitted with."""
    found = getattr(transformer, "feature_names_in_", None)
    return names if found is None else list(found)


def column_indices(columns: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """Columns as a ColumnTransformer names them -> their places."""
    if isinstance(columns, slice):
        if isinstance(columns.start, str) or isinstance(columns.stop, str):
            raise EstimatorUnsupported("a slice of named columns cannot be imported: list the columns")
        return list(range(count))[columns]
    listed = [columns] if isinstance(columns, str | int) else list(columns)
    if listed and all(str(flag) in ("True", "False") for flag in listed):
        return [i for i, flag in enumerate(listed) if flag]
    if any(isinstance(column, str) for column in listed):
        if names is None:
            raise EstimatorUnsupported("the pipeline picks columns by name: give the rows as a frame")
        return [list(names).index(str(column)) for column in listed]
    return [int(column) % count for column in listed]


def scale_by(features: list[Feature], scaler: Any) -> list[Feature]:
    """Features after a StandardScaler."""
    means = [0.0] * len(features) if scaler.mean_ is None or not scaler.with_mean else scaler.mean_
    scales = [1.0] * len(features) if scaler.scale_ is None else scaler.scale_
    require(len(means) == len(features), "a StandardScaler was fitted on another number of columns")
    return [
        replace(f, mean=f.mean + f.scale * float(m), scale=f.scale * float(s))
        for f, m, s in zip(features, means, scales, strict=True)
    ]


def indicate(features: list[Feature], encoder: Any) -> list[Feature]:
    """Features after a OneHotEncoder."""
    # a dropped value has no weight to be penalised: that is another objective than that of all values
    require(encoder.drop is None, "a OneHotEncoder with `drop` cannot be imported: fit with drop=None")
    rare = encoder.min_frequency is not None or encoder.max_categories is not None
    require(not rare, "a OneHotEncoder that gathers infrequent values cannot be imported")
    require(len(encoder.categories_) == len(features), "a OneHotEncoder was fitted on another number of columns")
    require(
        all(f.is_number and (f.mean, f.scale) == (0.0, 1.0) for f in features),
        "a OneHotEncoder must come first: nothing may be done to its columns before",
    )
    return [
        Feature(feature.column, plain_category(value))
        for feature, values in zip(features, encoder.categories_, strict=True)
        for value in values
    ]


def plain_category(value: Any) -> Any:
    """A category as JSON has it: text or a whole number; MISSING for what stands for no value."""
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return plain_value(value)


def plain_value(value: Any) -> int | str:
    """A value of a category or a class as a spec has it.

    >>> plain_value(2.0), plain_value("paid")
    (2, 'paid')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise EstimatorUnsupported(f"the value {value!r} is neither text nor a whole number")
    return value


def require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise EstimatorUnsupported(otherwise)
