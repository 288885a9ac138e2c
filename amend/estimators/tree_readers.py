"""Reads the trees of fitted LightGBM, XGBoost and scikit-learn models. None of these libraries is imported here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amend.estimators.pipeline_columns import is_a, name_of, plain_value, require

FORESTS = ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor")
BOOSTED = ("GradientBoostingClassifier", "GradientBoostingRegressor")
HISTOGRAM = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")
SINGLE = ("DecisionTreeClassifier", "DecisionTreeRegressor")
CATEGORICAL, DEFAULT_LEFT, MISSING_SHIFT, MISSING_ZERO, WORD_BITS = 1, 2, 2, 1, 32
"""LightGBM's encoding of decisions and sets, which histogram boosting shares in part."""


@dataclass
class Tree:
    """Inner nodes, the root first, and leaves. A child is the number of a node, or -1 - l for leaf l."""

    feature: list[int]
    threshold: list[float]
    """Values up to it go left."""
    left: list[int]
    right: list[int]
    missing_left: list[bool]
    values: Any
    """(leaves, K) what each leaf adds to the outputs."""
    zero_missing: list[bool] = field(default_factory=list)
    sets: dict[int, set[int]] = field(default_factory=dict)
    """Codes of the categories that go left, by node."""


@dataclass
class Ensemble:
    """A fitted tree ensemble."""

    trees: list[Tree]
    bias: Any
    """(K,)."""
    target: Mapping[str, Any]
    additive: bool = True
    """Whether predictions are sums over trees, up to the link. The probabilities of several classes of a forest are
    not."""
    double: bool = False
    """Whether the library compares in double precision. A threshold may then be the value of an example, which the
    service stores in single precision, so that the threshold must be rounded like it."""
    categories: dict[int, list[Any]] = field(default_factory=dict)
    """Values of each categorical feature, in the order of their codes."""
    loss: str | None = None
    """The loss of the head, if it is not the usual one."""


def is_ensemble(estimator: Any) -> bool:
    """Whether an object is a booster, a forest or a decision tree."""
    module, name = type(estimator).__module__.split(".")[0], type(estimator).__name__
    boosters = {"lightgbm": ("LGBM", "Booster"), "xgboost": ("XGB", "Booster")}
    return name.startswith(boosters.get(module, ("\0",))) or is_a(estimator, *FORESTS, *BOOSTED, *HISTOGRAM, *SINGLE)


def is_fitted(estimator: Any) -> bool:
    """Whether an ensemble has trees. The boosters of LightGBM and XGBoost always have, their estimators say so."""
    if type(estimator).__module__.split(".")[0] in ("lightgbm", "xgboost"):
        return type(estimator).__name__ == "Booster" or bool(estimator.__sklearn_is_fitted__())
    return any(hasattr(estimator, name) for name in ("estimators_", "_predictors", "tree_"))


def read_ensemble(estimator: Any, outputs: Mapping[str, Any] | None, columns: list[str] | None) -> Ensemble:
    """Read a fitted ensemble. `columns` are the names of categorical columns of a frame, in the order of the fit."""
    module = type(estimator).__module__.split(".")[0]
    if module == "lightgbm":
        return read_lightgbm(estimator, outputs, columns)
    if module == "xgboost":
        return read_xgboost(estimator, outputs)
    require(
        getattr(estimator, "n_outputs_", 1) == 1,
        "An estimator of several targets cannot be imported. Fit one for each target.",
    )
    if is_a(estimator, *BOOSTED):
        return read_boosted(estimator)
    return read_histogram(estimator) if is_a(estimator, *HISTOGRAM) else read_forest(estimator)


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


def codes_of(words: Any) -> set[int]:
    """The numbers in a bit set of 32-bit words.

    >>> sorted(codes_of([5, 1]))
    [0, 2, 32]
    """
    return {WORD_BITS * i + bit for i, word in enumerate(words) for bit in range(WORD_BITS) if int(word) >> bit & 1}


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


def read_boosted(estimator: Any) -> Ensemble:
    """GradientBoostingClassifier and GradientBoostingRegressor."""
    import numpy as np

    require_mean(estimator, ("log_loss", "exponential", "squared_error"))
    first = estimator.init_
    require(
        isinstance(first, str) or is_a(first, "DummyClassifier", "DummyRegressor"),
        "An ensemble that starts from another estimator (init=) cannot be imported.",
    )
    bias = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))[0]
    # the exponential loss predicts the probability of twice its output
    scale = 2.0 if getattr(estimator, "loss", None) == "exponential" else 1.0
    per_round, trees = len(bias), []
    for row in estimator.estimators_:
        for output, each in enumerate(row):
            values = np.zeros((each.tree_.node_count, per_round))
            values[:, output] = each.tree_.value[:, 0, 0] * estimator.learning_rate * scale
            trees.append(sklearn_tree(each.tree_, values))
    kind = "number" if not hasattr(estimator, "classes_") else "binary" if per_round == 1 else "classes"
    return with_outputs(
        Ensemble(trees, bias * scale, target_of(kind, per_round, getattr(estimator, "classes_", None), None))
    )


def read_histogram(estimator: Any) -> Ensemble:
    """HistGradientBoostingClassifier and HistGradientBoostingRegressor."""
    import numpy as np

    loss = estimator.loss
    require_mean(estimator, ("log_loss", "squared_error", "poisson"))
    columns, categories = list(range(estimator.n_features_in_)), {}
    if estimator._preprocessor is not None:  # it moves categorical columns to the front
        flags = np.asarray(estimator.is_categorical_, bool)
        columns = [*np.flatnonzero(flags).tolist(), *np.flatnonzero(~flags).tolist()]
        listed = estimator._preprocessor.named_transformers_["encoder"].categories_
        for column, values in zip(columns, listed, strict=False):
            categories[column] = [plain_value(value) for value in values if value is not None and value == value]
    bias = np.asarray(estimator._baseline_prediction, float).reshape(-1)
    per_round, trees = len(bias), []
    for row in estimator._predictors:
        for output, each in enumerate(row):
            nodes = each.nodes
            values = np.zeros((len(nodes), per_round))
            values[:, output] = nodes["value"]
            feature = np.array([columns[i] for i in nodes["feature_idx"]])
            inner = (nodes["left"], nodes["right"], nodes["is_leaf"].astype(bool), feature)
            tree = tree_of(*inner, nodes["num_threshold"], nodes["missing_go_to_left"], values)
            at = np.flatnonzero(~nodes["is_leaf"].astype(bool))
            for node, i in enumerate(at):
                if nodes["is_categorical"][i]:
                    tree.sets[node] = codes_of(each.raw_left_cat_bitsets[nodes["bitset_idx"][i]])
                    tree.threshold[node] = 0.0
            trees.append(tree)
    kind = "count" if loss == "poisson" else "number"
    if hasattr(estimator, "classes_"):
        kind = "binary" if per_round == 1 else "classes"
    target = target_of(kind, per_round, getattr(estimator, "classes_", None), None)
    return with_outputs(Ensemble(trees, bias, target, double=True, categories=categories))


def require_mean(estimator: Any, losses: tuple[str, ...]) -> None:
    """Refuse a loss whose optimum is not a mean, such as a quantile: an adaptation would predict means instead."""
    require(
        estimator.loss in losses,
        f"{name_of(estimator)} with loss={estimator.loss!r} cannot be imported. Supported: {', '.join(losses)}.",
    )


def read_forest(estimator: Any) -> Ensemble:
    """Random forests, extra trees and single trees: the mean of numbers, or of the probabilities of classes."""
    import numpy as np

    members = estimator.estimators_ if hasattr(estimator, "estimators_") else [estimator]
    classifies = hasattr(estimator, "classes_")
    outputs = len(estimator.classes_) if classifies else 1
    trees = [sklearn_tree(m.tree_, m.tree_.value[:, 0, :].astype(float) / len(members)) for m in members]
    kind = "number" if not classifies else "binary" if outputs == 2 else "classes"
    target = target_of(kind, outputs, getattr(estimator, "classes_", None), None)
    if target == {"kind": "binary"}:  # a mean of probabilities is linear in the leaves
        for tree in trees:
            tree.values = tree.values[:, 1:]
        return Ensemble(trees, np.zeros(1), target, loss="squared")
    return Ensemble(trees, np.zeros(outputs), target, additive=not classifies)


def sklearn_tree(tree: Any, values: Any) -> Tree:
    import numpy as np

    leaf = tree.children_left < 0
    directions = getattr(tree, "missing_go_to_left", np.zeros(len(leaf)))
    return tree_of(tree.children_left, tree.children_right, leaf, tree.feature, tree.threshold, directions, values)


def tree_of(left: Any, right: Any, leaf: Any, feature: Any, threshold: Any, missing_left: Any, values: Any) -> Tree:
    """A tree from arrays in which inner nodes and leaves share their numbers."""
    import numpy as np

    place = np.where(leaf, -np.cumsum(leaf), np.cumsum(~leaf) - 1)  # -1 - l for leaf l
    inner = np.flatnonzero(~leaf)
    return Tree(
        np.asarray(feature)[inner].astype(int).tolist(),
        np.asarray(threshold)[inner].astype(float).tolist(),
        place[np.asarray(left).astype(int)[inner]].tolist(),
        place[np.asarray(right).astype(int)[inner]].tolist(),
        np.asarray(missing_left)[inner].astype(bool).tolist(),
        values[leaf],
    )


def target_of(kind: str, outputs: int, classes: Any, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The target of an ensemble; `given` names the classes of a booster that does not know them."""
    if given is not None:
        return given
    if kind not in ("binary", "classes"):
        return {"kind": kind}
    names = (
        list(range(max(2, outputs))) if classes is None else [v.item() if hasattr(v, "item") else v for v in classes]
    )
    if kind == "binary" and names == [0, 1]:  # also True and False
        return {"kind": "binary"}
    return {"kind": "classes", "values": [plain_value(name) for name in names]}


def with_outputs(ensemble: Ensemble) -> Ensemble:
    """The ensemble with one output per class: a logit f equals a softmax of -f/2 and f/2."""
    import numpy as np

    outputs = len(ensemble.target["values"]) if ensemble.target["kind"] == "classes" else 1
    found = len(ensemble.bias)
    if found == 1 and outputs == 2:
        ensemble.bias = np.concatenate([-ensemble.bias, ensemble.bias]) / 2
        for tree in ensemble.trees:
            tree.values = np.hstack([-tree.values, tree.values]) / 2
        return ensemble
    require(found == outputs, f"The model has {found} outputs, but the target needs {outputs}.")
    return ensemble
