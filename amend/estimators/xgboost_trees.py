"""Reads the trees of fitted XGBoost models, without importing XGBoost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from amend.estimators.pipeline_columns import plain_value, require
from amend.estimators.tree_ensembles import Ensemble, Tree, target_of, tree_of, with_outputs


def read_xgboost(estimator: Any, outputs: Mapping[str, Any] | None) -> Ensemble:
    import numpy as np

    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    best = booster.attr("best_iteration")
    if best is not None and booster is not estimator:  # scikit-learn's interface predicts with the best iteration
        booster = booster[: int(best) + 1]
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    objective, about = learner["objective"]["name"], learner["learner_model_param"]
    kinds = {"binary:logistic": "binary", "multi:softprob": "classes", "multi:softmax": "classes"}
    kinds |= {"reg:squarederror": "number", "count:poisson": "count"}
    require(
        objective in kinds,
        f"An XGBoost model with the objective {objective!r} cannot be imported. Supported: {', '.join(kinds)}.",
    )
    source, dropped = learner["gradient_booster"], None
    if source["name"] == "dart":
        source, dropped = source["gbtree"], source["weight_drop"]
    linear = (
        "An XGBoost model with a linear booster cannot be imported. Use gbtree, or fit a LogisticRegression or Ridge."
    )
    require("trees" in source.get("model", {}), linear)
    per_round = max(1, int(about["num_class"]))
    base = np.array(json.loads(about["base_score"].replace("E", "e")), float).reshape(-1)
    base = np.broadcast_to(base, per_round)
    bias = np.array(base)
    if kinds[objective] == "binary":
        bias = np.log(base / (1 - base))
    elif kinds[objective] == "count":
        bias = np.log(base)
    absent = getattr(estimator, "missing", None)
    absent = None if absent is None or np.isnan(absent) else float(absent)
    require(
        absent in (None, 0.0),
        f"An XGBoost model with missing={absent} cannot be imported. Replace the value by NaN and fit again.",
    )
    trees, model = [], source["model"]
    for number, (nodes, output) in enumerate(zip(model["trees"], model["tree_info"], strict=True)):
        require(
            nodes["tree_param"]["size_leaf_vector"] in ("0", "1"),
            "An XGBoost model with vector leaves cannot be imported. Use multi_strategy='one_output_per_tree'.",
        )
        at = np.array(nodes["split_conditions"], np.float32)
        # XGBoost sends values below the threshold left, in single precision: those up to the next smaller number
        below = np.nextafter(at, np.float32(-np.inf)).astype(float)
        values = np.zeros((len(at), per_round))
        values[:, output] = at.astype(float) * (1.0 if dropped is None else dropped[number])
        trees.append(xgboost_tree(nodes, below, values))
        trees[-1].zero_missing = [absent is not None] * len(trees[-1].feature)
    target = target_of(kinds[objective], per_round, getattr(estimator, "classes_", None), outputs)
    sets = {tree.feature[node] for tree in trees for node in tree.sets}
    listed = model.get("cats", {}).get("enc", [])
    categories = {i: xgboost_categories(each) for i, each in enumerate(listed) if each["values"]}
    require(
        sets <= categories.keys(),
        "The XGBoost model does not store the values of its categories. Fit it on a frame with categorical columns.",
    )
    return with_outputs(Ensemble(trees, bias, target, categories=categories))


def xgboost_tree(nodes: Mapping[str, Any], thresholds: Any, values: Any) -> Tree:
    import numpy as np

    left, right, default = (np.array(nodes[name]) for name in ("left_children", "right_children", "default_left"))
    leaf, categorical = left < 0, np.array(nodes["split_type"], bool)
    # XGBoost sends the categories of a set right, and the service sends them left
    ends = np.where(categorical, right, left), np.where(categorical, left, right)
    tree = tree_of(*ends, leaf, np.array(nodes["split_indices"]), thresholds, default ^ categorical, values)
    place = np.cumsum(~leaf) - 1
    for node, start, size in zip(
        nodes["categories_nodes"], nodes["categories_segments"], nodes["categories_sizes"], strict=True
    ):
        tree.sets[int(place[node])] = set(nodes["categories"][start : start + size])
        tree.threshold[int(place[node])] = 0.0
    return tree


def xgboost_categories(listed: Mapping[str, Any]) -> list[Any]:
    """The values of a categorical column in the order of their codes: texts in one array of bytes, or numbers."""
    if "offsets" not in listed:
        return [plain_value(value) for value in listed["values"]]
    ends = listed["offsets"]
    require(
        all(0 <= byte < 128 for byte in listed["values"]),
        "XGBoost stores the names of categories incorrectly if they are not plain ASCII. Rename them and fit again.",
    )
    text = bytes(listed["values"]).decode()
    return [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
