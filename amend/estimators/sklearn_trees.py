"""Reads the trees of fitted scikit-learn models, without importing scikit-learn."""

from __future__ import annotations

from typing import Any

from amend.estimators.pipeline_columns import is_a, name_of, plain_value, require
from amend.estimators.tree_ensembles import Ensemble, Tree, codes_of, target_of, tree_of, with_outputs


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
