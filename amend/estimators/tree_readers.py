"""Reads the trees of fitted models. The library is not imported here: a caller who has an estimator has loaded it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amend.estimators.lightgbm_trees import read_lightgbm
from amend.estimators.pipeline_columns import is_a, require
from amend.estimators.sklearn_trees import read_boosted, read_forest, read_histogram
from amend.estimators.tree_ensembles import Ensemble
from amend.estimators.xgboost_trees import read_xgboost

FORESTS = ("RandomForestClassifier", "RandomForestRegressor", "ExtraTreesClassifier", "ExtraTreesRegressor")
BOOSTED = ("GradientBoostingClassifier", "GradientBoostingRegressor")
HISTOGRAM = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")
SINGLE = ("DecisionTreeClassifier", "DecisionTreeRegressor")


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
