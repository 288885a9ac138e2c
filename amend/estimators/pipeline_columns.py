"""Follows columns through the steps of a fitted pipeline that keep each feature a scaled number or indicator.

`pipeline_steps.py` describes all other pipelines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amend.dataframes import RESERVED
from amend.errors import EstimatorUnsupported

MISSING = object()
"""The value of the indicator of a missing category."""
OTHER = object()
"""The value of the indicator of all values that are not listed."""
UNSEEN = "other"
"""The name under which the service counts unseen values. A column with a value of this name cannot accept any: they
would be mistaken for it."""
KERNEL = 'create a model with the architecture {"kind": "kernel", "lengthscale": ...} (docs/how-to/kernel-models.md)'
"""Advice for kernels, which cannot be imported."""
NUMBER = object()
"""In place of a category's value: the feature is a number."""
FLAG = object()
"""In place of a category's value: the feature is 1 where a number is missing."""
CODE = object()
"""In place of a category's value: the feature is a number for each value, from an OrdinalEncoder."""


class NotColumnwiseError(EstimatorUnsupported):
    """A step mixes columns or is not affine, so that its features are not the model's own columns."""


@dataclass(frozen=True)
class Feature:
    """(x - mean) / scale, where x is a number, the flag of a missing number, or the indicator of a category's value."""

    column: int
    """Index of the input column."""
    value: Any = NUMBER
    mean: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    """Number that replaces a missing number, before the scaling; None if the pipeline does not replace it."""

    @property
    def is_number(self) -> bool:
        return self.value is NUMBER

    @property
    def is_plain(self) -> bool:
        """Whether this is a column as it came."""
        return self.is_number and (self.mean, self.scale, self.fill) == (0.0, 1.0, None)

    def scaled(self, mean: float, scale: float) -> "Feature":
        return replace(self, mean=self.mean + self.scale * mean, scale=self.scale * scale)


@dataclass(frozen=True)
class Codes:
    """The numbers by which an OrdinalEncoder replaces the values of a column; NaN is a missing number."""

    known: dict[Any, float]
    unseen: float | None
    """None: the encoder refuses unseen values."""
    missing: float


@dataclass
class Categories:
    """The categories that encoders found, by column."""

    codes: dict[int, Codes] | None = None
    """Numbers for categories, for models that can use them; None: for all others."""

    values: dict[int, list[Any]] = field(default_factory=dict)
    """Listed values, without that of missing values."""
    unseen: set[int] = field(default_factory=set)
    """Columns in which the encoder accepts values that are not listed."""


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


def transform(
    features: list[Feature], transformer: Any, names: Sequence[str] | None, found: Categories
) -> list[Feature]:
    """The features after a transformer. `names` are the names of the inputs, if they have any."""
    if transformer in (None, "passthrough") or is_identity(transformer):
        return features
    if transformer == "drop":
        return []
    if is_a(transformer, "Pipeline"):
        for _, step in transformer.steps:
            features = transform(features, step, names, found)
        return features
    if is_a(transformer, "ColumnTransformer"):
        given = input_names(transformer, names)
        parts = [
            (part, [features[i] for i in column_indices(columns, given, len(features))])
            for _, part, columns in transformer.transformers_
        ]
        return [feature for part, chosen in parts for feature in transform(chosen, part, names, found)]
    if is_a(transformer, "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"):
        return scale_by(features, transformer)
    if is_a(transformer, "SimpleImputer"):
        return impute(features, transformer)
    if is_a(transformer, "OneHotEncoder"):
        return indicate(features, transformer, found)
    if is_a(transformer, "OrdinalEncoder") and found.codes is not None:
        return number_values(features, transformer, found, found.codes)
    raise NotColumnwiseError(f"The features of {name_of(transformer, 'a')} are not columns.")


def is_identity(transformer: Any) -> bool:
    return is_a(transformer, "FunctionTransformer") and transformer.func is None


def input_names(transformer: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    """The column names that a transformer was fitted with."""
    found = getattr(transformer, "feature_names_in_", None)
    return names if found is None else list(found)


def require_columns(names: Sequence[str], given: Sequence[str]) -> None:
    """Refuse rows that lack columns of the fit."""
    missing = [str(name) for name in names if name not in given]
    reserved = [name for name in missing if name in RESERVED]
    require(
        not reserved,
        f"The estimator was fitted with the column {', '.join(map(repr, reserved))}, which is a reserved name in Amend "
        f"({', '.join(RESERVED)}). Rename the column and fit the estimator again.",
    )
    require(not missing, f"The frame lacks {', '.join(map(repr, missing[:3]))}, which the estimator was fitted with.")


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


def scaling_of(scaler: Any, count: int) -> tuple[list[float], list[float]]:
    """Means and scales of a fitted scaler: it computes (x - mean) / scale."""
    if is_a(scaler, "MinMaxScaler"):
        # x * scale_ + min_
        scales = [1 / float(s) for s in scaler.scale_]
        return [-float(m) * s for m, s in zip(scaler.min_, scales, strict=True)], scales
    means = getattr(scaler, "center_" if is_a(scaler, "RobustScaler") else "mean_", None)
    if means is None or not getattr(scaler, "with_mean", True):
        means = [0.0] * count
    scales = [1.0] * count if scaler.scale_ is None else scaler.scale_
    return [float(m) for m in means], [float(s) for s in scales]


def scale_by(features: list[Feature], scaler: Any) -> list[Feature]:
    """Features after a scaler."""
    if getattr(scaler, "clip", False):
        raise NotColumnwiseError("A scaler with clip=True is not affine.")
    means, scales = scaling_of(scaler, len(features))
    require(len(means) == len(features), f"A {type(scaler).__name__} was fitted on a different number of columns.")
    return [f.scaled(m, s) for f, m, s in zip(features, means, scales, strict=True)]


def fill_values(imputer: Any) -> list[Any]:
    """What a SimpleImputer fills in, by input; None: it drops the column, in which no value was known."""
    kept = imputer.strategy == "constant" or getattr(imputer, "keep_empty_features", False)
    return [None if not kept and is_nan(value) else value for value in imputer.statistics_]


def is_nan(value: Any) -> bool:
    value = value.item() if hasattr(value, "item") else value
    return value is None or (isinstance(value, float) and math.isnan(value))


def impute(features: list[Feature], imputer: Any) -> list[Feature]:
    """Features after a SimpleImputer: with missing numbers replaced, and the flags of some."""
    values = fill_values(imputer)
    require(len(values) == len(features), "A SimpleImputer was fitted on a different number of columns.")
    missing = imputer.missing_values
    if not is_nan(missing) or any(not f.is_number or f.fill is not None for f in features):
        raise NotColumnwiseError("The pipeline replaces values other than missing numbers.")
    made = []
    for feature, value in zip(features, values, strict=True):
        if value is None:
            continue
        if isinstance(value, str):
            raise NotColumnwiseError("The pipeline replaces missing categories.")
        made.append(replace(feature, fill=feature.mean + feature.scale * float(value)))
    flagged = imputer.indicator_.features_ if imputer.add_indicator else []
    return [*made, *(Feature(features[i].column, FLAG) for i in flagged)]


def indicate(features: list[Feature], encoder: Any, found: Categories) -> list[Feature]:
    """Features after a OneHotEncoder."""
    require(len(encoder.categories_) == len(features), "A OneHotEncoder was fitted on a different number of columns.")
    if not all(f.is_plain for f in features):
        raise NotColumnwiseError("A OneHotEncoder is not the first step for its columns.")
    made = []
    for i, feature in enumerate(features):
        outputs, groups_unseen = one_hot_outputs(encoder, i)
        values = [v for output in outputs if len(output.values) == 1 for v in output.values]
        grouped = [output for output in outputs if len(output.values) != 1]
        if (grouped and not groups_unseen) or any(MISSING in output.values for output in grouped):
            raise NotColumnwiseError("A OneHotEncoder groups rare values, but not unseen ones.")
        found.values[feature.column] = [v for v in values if v is not MISSING]
        if not found.values[feature.column]:
            raise NotColumnwiseError("All values of a category are rare.")
        if encoder.handle_unknown != "error" or grouped:
            found.unseen.add(feature.column)
        made += [
            Feature(feature.column, output.values[0] if len(output.values) == 1 else OTHER)
            for output in outputs
            if not output.dropped
        ]
    return made


def number_values(features: list[Feature], encoder: Any, found: Categories, codes: dict[int, Codes]) -> list[Feature]:
    """Features after an OrdinalEncoder."""
    require(len(encoder.categories_) == len(features), "An OrdinalEncoder was fitted on a different number of columns.")
    require(all(f.is_plain for f in features), "An OrdinalEncoder must be the first step for its columns.")
    rare = encoder.min_frequency is not None or encoder.max_categories is not None
    require(not rare, "An OrdinalEncoder that groups rare values cannot be imported. Use a OneHotEncoder.")
    unseen = float(encoder.unknown_value) if encoder.handle_unknown == "use_encoded_value" else None
    for feature, categories in zip(features, encoder.categories_, strict=True):
        listed = [plain_category(value) for value in categories]
        known = {value: float(code) for code, value in enumerate(v for v in listed if v is not MISSING)}
        absent = float(encoder.encoded_missing_value) if MISSING in listed else math.nan if unseen is None else unseen
        codes[feature.column] = Codes(known, unseen, absent)
        found.values[feature.column] = list(known)
        if unseen is not None:
            found.unseen.add(feature.column)
    return [replace(feature, value=CODE) for feature in features]


@dataclass(frozen=True)
class OneHotOutput:
    """One output of a OneHotEncoder: it is 1 for these values."""

    values: list[Any]
    dropped: bool


def one_hot_outputs(encoder: Any, i: int) -> tuple[list[OneHotOutput], bool]:
    """The outputs for the i-th input, and whether its group of rare values stands for unseen values as well."""
    categories = list(encoder.categories_[i])
    plain = [plain_category(value) for value in categories]
    enabled = encoder.min_frequency is not None or encoder.max_categories is not None
    rare = encoder.infrequent_categories_[i] if enabled else None
    places = [] if rare is None else [j for j, value in enumerate(categories) if any(same(value, r) for r in rare)]
    drop = None if encoder.drop_idx_ is None else encoder.drop_idx_[i]
    outputs = [OneHotOutput([plain[j]], j == drop) for j in range(len(plain)) if j not in places]
    if places:
        outputs.append(OneHotOutput([plain[j] for j in places], drop in places))
    if len(places) == 1 and encoder.handle_unknown in ("infrequent_if_exist", "error"):
        # the only rare value: listed as one, its output would not be 1 for unseen values
        outputs[-1] = OneHotOutput([*outputs[-1].values, OTHER], outputs[-1].dropped)
    return outputs, encoder.handle_unknown in ("infrequent_if_exist", "error")


def same(a: Any, b: Any) -> bool:
    return bool(a == b) or (is_nan(a) and is_nan(b))


def plain_category(value: Any) -> Any:
    """A category's value as the service knows it; MISSING for a missing value."""
    if is_nan(value):
        return MISSING
    return plain_value(value)


def plain_value(value: Any) -> int | str:
    """A value of a category or a class as text or a whole number.

    >>> plain_value(2.0), plain_value("paid")
    (2, 'paid')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and not (value and value.isprintable()):
        problem = "has control characters" if value else "counts as a missing value in Amend"
        raise EstimatorUnsupported(f"The category or class {value!r} {problem}. Replace it in the rows, and fit again.")
    if not isinstance(value, int | str):
        raise EstimatorUnsupported(
            f"The category or class {value!r} is neither text nor a whole number. Convert its column to text, or to "
            "whole numbers, and fit again; or use it as a number."
        )
    return value


def name_of(thing: Any, article: str = "A") -> str:
    """The name of an object's class with its article, for the beginning of a sentence; with "a", for its middle.

    >>> name_of(OSError()), name_of(ValueError(), "a")
    ('An OSError', 'a ValueError')
    """
    name = type(thing).__name__
    spelt = name[1:2].isupper() and name[0] in "FHLMNRSX"  # an SVC, an LGBMClassifier
    vowel = name[0] in "AEIO" and not name.startswith("One")
    return f"{article}{'n' if vowel or spelt else ''} {name}"


def require(fact: bool, otherwise: str) -> None:
    if not fact:
        raise EstimatorUnsupported(otherwise)
