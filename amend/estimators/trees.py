"""Composes the import of a tree ensemble: splits in terms of the columns that are sent, and weights of leaves."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.fitted_rows import Inputs
from amend.estimators.pipeline_columns import (
    CODE,
    FLAG,
    MISSING,
    UNSEEN,
    Categories,
    Feature,
    NotColumnwiseError,
    input_names,
    require,
    require_columns,
    transform,
)
from amend.estimators.tree_ensembles import WORD_BITS, Ensemble, Tree
from amend.estimators.tree_readers import is_fitted, read_ensemble

Spec = dict[str, Any]
ADVICE = (
    "Before trees, Amend imports SimpleImputer of numbers, scalers, OneHotEncoder, OrdinalEncoder and "
    "ColumnTransformer. Boosters split numbers and categories as they are, so fit the model without the step."
)
LARGEST_SINGLE, LARGEST = 3.4e38, 1e300


class Columns:
    """The columns that the splits refer to: numbers, and categories with their values."""

    def __init__(
        self, names: list[str] | None, features: list[Feature], natural: Mapping[int, list[Any]], found: Categories
    ) -> None:
        self.names, self.values, self.codes = names, dict(found.values), found.codes or {}
        self.natural = natural
        """Values of the categorical features of the ensemble, in the order of their codes."""
        self.closed = {f.column for f in features if f.value is MISSING}
        """Categories whose unseen values would not go the way of missing ones, and are refused."""
        for place, values in natural.items():
            if features[place].value is CODE:
                continue
            require(features[place].is_plain, "A step before a booster with categorical columns cannot be imported.")
            self.values[features[place].column] = list(values)
        of_numbers = [
            f for place, f in enumerate(features) if place not in natural and (f.is_number or f.value is FLAG)
        ]
        numbers = {feature.column for feature in of_numbers}
        require(not numbers & self.values.keys(), "A column cannot be both a number and a category.")
        require(names is not None or not self.values, "Categories require a frame. Pass the rows as a frame.")
        self.used = sorted(numbers | self.values.keys())

    def describe(self, width: int) -> Spec:
        """The input of the model."""
        if self.names is None:
            return {"kind": "vector", "dim": width}
        columns: list[Spec] = []
        for i in self.used:
            column: Spec = {"name": self.names[i], "type": "number"}
            if i in self.values:
                column = {"name": self.names[i], "type": "category", "values": self.values[i] or ["other"]}
                column["other"] = i not in self.closed and UNSEEN not in self.values[i]
            columns.append(column)
        return {"kind": "table", "columns": columns}

    def place(self, column: int) -> int:
        """The index of a column among those that are sent."""
        return column if self.names is None else self.used.index(column)


def compose_trees(
    estimator: Any,
    steps: list[Any],
    inputs: Inputs,
    outputs: Mapping[str, Any] | None,
    regularizer: Spec | None,
    log: str | None = None,
) -> Spec:
    """The parts of an import: the model spec, the splits, and the weights if predictions are sums over leaves.

    `log` is the function of a number that the estimator was fitted to.
    """
    require(len(inputs.shape) == 1, "Trees need rows of numbers or a frame, not images.")
    require(is_fitted(estimator), "The estimator is not fitted.")
    names = fitted_names(estimator, steps, inputs)
    columns = list(range(inputs.shape[0]))
    if inputs.names is not None and names is not None:
        require_columns(names, inputs.names)
        columns = [inputs.names.index(name) for name in names]
    features, categories = [Feature(i) for i in columns], Categories(codes={})
    try:
        for step in steps:
            features = transform(features, step, names, categories)
    except NotColumnwiseError as error:
        raise EstimatorUnsupported(f"{error} {ADVICE}") from error
    found = read_ensemble(estimator, outputs, None if steps else category_names(inputs, names))
    largest = max((max(tree.feature, default=0) for tree in found.trees), default=0)
    require(largest < len(features), f"The estimator uses {largest + 1} features, but the rows have {len(features)}.")
    if log is not None:
        require(found.target == {"kind": "number"}, "Only a regressor of a number can have a transformed target.")
        found.target = {"kind": "number", "transform": log}
    layout = Columns(inputs.names, features, found.categories, categories)
    leaves = max(2, *(len(tree.values) for tree in found.trees))
    used = None if inputs.names is None else [inputs.names[i] for i in layout.used]
    splits = splits_of(found, features, layout, leaves)  # which may close a column to unseen values
    return {
        "input": layout.describe(inputs.shape[0]),
        "target": found.target,
        "architecture": {"kind": "trees", "trees": len(found.trees), "leaves": leaves},
        "regularizer": regularizer or {"kind": "l2", "delta": "auto"},
        "weights": leaf_weights(found, leaves) if found.additive else None,
        "splits": splits,
        "loss": found.loss,
        "examples": inputs.table if used is None else inputs.only(used),
    }


def fitted_names(estimator: Any, steps: list[Any], inputs: Inputs) -> Any:
    """The names of the columns that the pipeline, or a booster, was fitted with."""
    if steps or type(estimator).__module__.split(".")[0] not in ("lightgbm", "xgboost"):
        return input_names(steps[0] if steps else estimator, inputs.names)
    booster = getattr(estimator, "booster_", estimator)
    booster = booster.get_booster() if hasattr(booster, "get_booster") else booster
    names = booster.feature_names if hasattr(booster, "feature_names") else booster.feature_name()
    if inputs.names is None or not names or all(name == f"Column_{i}" for i, name in enumerate(names)):
        return inputs.names
    own = {name.replace(" ", "_"): name for name in inputs.names}  # LightGBM replaces spaces
    return [own.get(name, name) for name in names]


def category_names(inputs: Inputs, names: Any) -> list[str] | None:
    """The categorical columns of a frame, in the order of the fit."""
    if inputs.names is None:
        return None
    import pyarrow as pa

    kinds = {name: inputs.table.schema.field(name).type for name in inputs.names}
    return [name for name in names or inputs.names if pa.types.is_dictionary(kinds[name])]


def leaf_weights(found: Ensemble, leaves: int) -> list[float]:
    """The values of all leaves as weights, in the service's order: output by output, the bias last."""
    import numpy as np

    weight = np.zeros((len(found.bias), len(found.trees), leaves))
    for t, tree in enumerate(found.trees):
        weight[:, t, : len(tree.values)] = tree.values.T
    flat = weight.reshape(len(found.bias), -1)
    numbers: list[float] = np.column_stack([flat, found.bias]).ravel().tolist()
    return numbers


def splits_of(found: Ensemble, features: list[Feature], layout: Columns, leaves: int) -> Spec:
    """The splits as the service reads them: for each tree, a list of numbers for each node."""
    names = ("feature", "threshold", "left", "right", "missing_left", "zero_missing")
    splits: Spec = {name: [] for name in (*names, "category_start", "category_words")}
    words: list[int] = []
    for tree in found.trees:
        nodes = [describe_node(tree, i, features, layout, found.double) for i in range(len(tree.feature))]
        for node in nodes:
            if found.double:
                node["threshold"] = to_single(node["threshold"])
            members = node.pop("set")
            node["category_start"], node["category_words"] = len(words), 0
            if members is not None:
                packed = pack_codes(members)
                node["category_words"] = len(packed)
                words += packed
        nothing = {"left": -1, "right": -1}
        for name, rows in splits.items():
            padding = [nothing.get(name, 0)] * (leaves - 1 - len(nodes))
            rows.append([*(node[name] for node in nodes), *padding])
    return {**splits, "words": words}


def describe_node(tree: Tree, i: int, features: list[Feature], layout: Columns, double: bool) -> Spec:
    """A node in terms of the columns that are sent. `double`: the library compares in double precision."""
    feature, t = features[tree.feature[i]], tree.threshold[i]
    if not double and not feature.is_plain:
        t = last_rounded_to(t)
    left, right = tree.left[i], tree.right[i]
    zero = bool(tree.zero_missing and tree.zero_missing[i])
    node: Spec = {"feature": layout.place(feature.column), "threshold": 0.0, "left": left, "right": right, "set": None}
    node |= {"missing_left": tree.missing_left[i], "zero_missing": zero}
    if feature.value is CODE:
        return node | describe_codes(tree, i, t, feature, layout)
    if i in tree.sets:
        return node | {"set": tree.sets[i]}
    if tree.feature[i] in layout.natural:  # LightGBM compares the codes of an ordered category with a threshold
        numbers = range(len(layout.values[feature.column]))
        lower = {code for code in numbers if (tree.missing_left[i] if zero and code == 0 else code <= t)}
        return node | {"set": lower, "zero_missing": False}
    if not feature.is_number:
        zero_end, one_end = (left if (x - feature.mean) / feature.scale <= t else right for x in (0, 1))
        if feature.value is FLAG:  # of a missing number: all others are below any threshold
            return node | {"left": zero_end, "right": one_end, "threshold": LARGEST, "missing_left": False}
        known, is_missing = layout.values[feature.column], feature.value is MISSING
        if not is_missing and feature.value not in known:
            raise NotColumnwiseError("A OneHotEncoder that groups rare values cannot be imported before trees.")
        # the indicator of a value is a set of one, which goes where a 1 goes
        own = set() if is_missing else {known.index(feature.value)}
        return node | {"left": one_end, "right": zero_end, "set": own, "missing_left": is_missing}
    require(not zero or feature.is_plain, "A step before a booster with zero_as_missing cannot be imported.")
    if feature.fill is not None:
        node["missing_left"] = (feature.fill - feature.mean) / feature.scale <= t
    # scikit-learn separates missing values from all others by an infinite threshold, which JSON cannot represent
    t = max(-LARGEST, min(LARGEST, t))
    return node | {"threshold": t if feature.is_plain else t * feature.scale + feature.mean}


def describe_codes(tree: Tree, i: int, t: float, feature: Feature, layout: Columns) -> Spec:
    """The direction of each value of a column that an OrdinalEncoder turned into numbers."""
    codes, natural = layout.codes[feature.column], layout.natural.get(tree.feature[i], [])

    def goes_left(code: float) -> bool:
        if i in tree.sets:
            return natural.index(code) in tree.sets[i] if code in natural else tree.missing_left[i]
        if math.isnan(code):
            return tree.missing_left[i]
        return (code - feature.mean) / feature.scale <= t

    left = goes_left(codes.missing)
    if codes.unseen is not None and goes_left(codes.unseen) != left:
        layout.closed.add(feature.column)  # a node has one direction for missing and unseen values
    known = layout.values[feature.column]
    return {"set": {known.index(value) for value, code in codes.known.items() if goes_left(code)}, "missing_left": left}


def last_rounded_to(threshold: float) -> float:
    """The largest number that is not above a threshold once it is rounded to single precision.

    Some libraries round a scaled number before they compare it, and their thresholds may be such rounded numbers.

    >>> last_rounded_to(1.0) - 1.0 == 2**-24
    True
    """
    import numpy as np

    below = np.float32(threshold)
    if float(below) > threshold:
        below = np.nextafter(below, np.float32(-np.inf))
    return (float(below) + float(np.nextafter(below, np.float32(np.inf)))) / 2


def to_single(number: float) -> float:
    """A number rounded to single precision.

    >>> to_single(0.1)
    0.10000000149011612
    """
    if abs(number) > LARGEST_SINGLE:  # which separates missing values from all others
        return number
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def pack_codes(codes: set[int]) -> list[int]:
    """A set of codes as 32-bit words.

    >>> pack_codes({0, 2, 32})
    [5, 1]
    """
    words = [0] * (max(codes, default=0) // WORD_BITS + 1)
    for code in codes:
        words[code // WORD_BITS] |= 1 << code % WORD_BITS
    return words
