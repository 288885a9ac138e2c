"""Reads the trees of fitted LightGBM models, without importing LightGBM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amend.estimators.pipeline_columns import plain_value, require
from amend.estimators.tree_ensembles import (
    CATEGORICAL,
    DEFAULT_LEFT,
    MISSING_SHIFT,
    MISSING_ZERO,
    Ensemble,
    Tree,
    codes_of,
    target_of,
    with_outputs,
)


def read_lightgbm(estimator: Any, outputs: Mapping[str, Any] | None, columns: list[str] | None) -> Ensemble:
    import numpy as np

    booster = getattr(estimator, "booster_", estimator)
    text = booster.model_to_string()
    head = text.split("\nTree=", 1)[0]
    about = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    objective, *options = about.get("objective", "custom").split()
    per_round = int(about["num_tree_per_iteration"])
    kinds = {"binary": "binary", "multiclass": "classes", "regression": "number", "poisson": "count"}
    require(
        objective in kinds and "sqrt" not in options,
        f"A LightGBM model with the objective {objective!r} cannot be imported. Supported: {', '.join(kinds)}.",
    )
    steepness = next((float(option[8:]) for option in options if option.startswith("sigmoid:")), 1.0)
    classes = getattr(estimator, "classes_", None)
    target = target_of(kinds[objective], per_round, classes, outputs)
    found, trees = text.split("\nTree=")[1:], []
    scale = steepness if objective == "binary" else 1.0
    if "\naverage_output\n" in head:
        scale /= len(found) // per_round
    for number, block in enumerate(found):
        lines = block.split("\n\n", 1)[0].split("end of trees")[0].splitlines()[1:]
        numbers = {
            name: np.array(values.split(), float)
            for name, values in (line.split("=", 1) for line in lines if "=" in line)
        }
        require(
            not numbers.get("is_linear", np.zeros(1)).any(),
            "A model with linear trees cannot be imported. Use linear_tree=False.",
        )
        trees.append(lightgbm_tree(numbers, scale, number % per_round, per_round))
    values = booster.pandas_categorical or []
    require(
        not values or (columns is not None and len(columns) == len(values)),
        "The booster was fitted with categorical columns. Pass the rows as a frame with the same categorical columns.",
    )
    names = list(booster.feature_name())
    sets = {tree.feature[node] for tree in trees for node in tree.sets}
    known = {
        names.index(spell_feature(c)): [plain_value(v) for v in vs]
        for c, vs in zip(columns or [], values, strict=False)
    }
    for unnamed in sorted(sets - known.keys()):  # whole numbers, which LightGBM was told are categories
        largest = max(
            max(tree.sets[node], default=0) for tree in trees for node in tree.sets if tree.feature[node] == unnamed
        )
        known[unnamed] = list(range(largest + 1))
    return with_outputs(Ensemble(trees, np.zeros(per_round), target, double=True, categories=known))


def spell_feature(name: str) -> str:
    """The name of a column as LightGBM stores it."""
    return name.replace(" ", "_")


def lightgbm_tree(numbers: Mapping[str, Any], scale: float, output: int, outputs: int) -> Tree:
    import numpy as np

    values = np.zeros((int(numbers["num_leaves"][0]), outputs))
    values[:, output] = numbers["leaf_value"] * scale
    kinds = numbers.get("decision_type", np.zeros(0)).astype(int).tolist()
    missing = [(kind >> MISSING_SHIFT) & 3 for kind in kinds]
    thresholds = numbers.get("threshold", np.zeros(0)).tolist()
    whole = {
        name: numbers[name].astype(int).tolist() if kinds else []
        for name in ("split_feature", "left_child", "right_child")
    }
    tree = Tree(
        whole["split_feature"],
        [0.0 if kind & CATEGORICAL else t for kind, t in zip(kinds, thresholds, strict=True)],
        whole["left_child"],
        whole["right_child"],
        # without a direction of their own, missing values are zeros
        [
            not kind & CATEGORICAL and (bool(kind & DEFAULT_LEFT) if m else t >= 0)
            for kind, m, t in zip(kinds, missing, thresholds, strict=True)
        ],
        values,
        [m == MISSING_ZERO for m in missing],
    )
    for node, kind in enumerate(kinds):
        if kind & CATEGORICAL:
            first, end = numbers["cat_boundaries"][int(thresholds[node]) :][:2].astype(int)
            tree.sets[node] = codes_of(numbers["cat_threshold"][first:end])
    return tree
