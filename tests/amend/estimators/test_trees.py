"""Imported tree ensembles: the service's own code, given what the client sends, predicts what the estimator does."""

from __future__ import annotations

import json
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from amend.errors import EstimatorUnsupported
from amend.estimators import compose, describe_inputs
from core.kprior import Predictor
from core.models.spec import SpecSchema
from core.versions import imported_weights

N = 400
QUIET = {"verbosity": -1, "num_leaves": 7, "n_estimators": 6}


def frame(categories: str = "text") -> pd.DataFrame:
    r = np.random.default_rng(3)
    made = pd.DataFrame({"age": r.normal(40, 9, N), "amount spent": r.lognormal(2, 1, N), "visits": r.poisson(2, N)})
    made["plan"] = r.choice(["free", "basic", "pro", "team", "old"], N)
    made["visits"] = made.visits.astype(float)
    made.loc[r.random(N) < 0.1, "age"] = np.nan
    made.loc[r.random(N) < 0.2, "visits"] = 0.0
    if categories == "category":
        made["plan"] = made.plan.astype("category")
        made.loc[r.random(N) < 0.1, "plan"] = np.nan
    elif categories == "none":
        made = made.drop(columns="plan")
    score = (
        np.sin(made.age.fillna(30) / 4)
        + np.log(made["amount spent"]) / 2
        + (0 if categories == "none" else made.plan.isin(["pro", "old"]))
    )
    return made.assign(score=score + r.normal(0, 0.4, N))


def target(rows: pd.DataFrame, kind: str) -> Any:
    if kind == "number":
        return rows.score
    if kind == "count":
        return np.floor(np.exp(rows.score.clip(-2, 2))).astype(int)
    if kind == "texts":
        return np.where(rows.score > 1, "yes", "no")
    return np.digitize(rows.score, [0.5, 1.5]) if kind == "classes" else (rows.score > 1).astype(int)


def predict(sent: Any, rows: pd.DataFrame) -> np.ndarray:
    """What the service predicts with the weights and splits that the client sends."""
    given = {"input": sent.input, "target": sent.target, "architecture": sent.architecture}
    given |= {"loss": sent.loss} if sent.loss else {}
    spec = SpecSchema.model_validate({**given, "regularizer": sent.regularizer}).plain()
    imported = imported_weights.check(spec, sent.weights, None, sent.splits)
    predictor = Predictor(spec)
    assert imported.splits is not None
    assert imported.w is not None
    predictor.encoder.set_splits(imported.splits)
    x = np.empty((len(rows), len(spec["input"]["columns"])))
    for j, column in enumerate(spec["input"]["columns"]):
        values = rows[column["name"]]
        if column["type"] == "category":
            codes = {value: code for code, value in enumerate(column["values"])}
            values = [np.nan if pd.isna(v) else codes.get(v, -1) for v in values]
        x[:, j] = values
    return predictor.family.mean(predictor.outputs(imported.w, torch.from_numpy(x.astype(np.float32)))).numpy()


def check(estimator: Any, rows: pd.DataFrame, kind: str, fresh: pd.DataFrame | None = None, **given: Any) -> None:
    x = rows.drop(columns="score")
    sent = compose(estimator, describe_inputs(x.assign(y=target(rows, kind)), "y"), given.get("outputs"), None)
    fresh = x if fresh is None else fresh
    found = predict(sent, fresh)
    if hasattr(estimator, "predict_proba"):
        truth = estimator.predict_proba(fresh)
        truth = truth if found.shape[1] > 1 else truth[:, 1:]
    else:
        truth = np.asarray(estimator.predict(fresh)).reshape(len(fresh), -1)
    assert np.abs(found - truth).max() < 1e-6 * max(1.0, np.abs(truth).max())


@pytest.mark.parametrize("kind", ["binary", "texts", "classes", "number", "count"])
def test_lightgbm(kind: str) -> None:
    rows = frame("category")
    model = lightgbm.LGBMClassifier if kind in ("binary", "texts", "classes") else lightgbm.LGBMRegressor
    options = {"objective": "poisson"} if kind == "count" else {}
    fitted = model(**QUIET, **options, min_child_samples=5).fit(rows.drop(columns="score"), target(rows, kind))
    fresh = rows.drop(columns="score").iloc[:50].assign(age=np.nan)
    fresh["plan"] = pd.Categorical(["never seen", "pro"] * 25, categories=[*rows.plan.cat.categories, "never seen"])
    known = fresh.assign(plan=fresh.plan.cat.set_categories(rows.plan.cat.categories))
    check(fitted, rows, kind)
    x = rows.drop(columns="score")
    sent = compose(fitted, describe_inputs(x.assign(y=target(rows, kind)), "y"), None, None)
    truth = fitted.predict_proba(known) if hasattr(fitted, "predict_proba") else fitted.predict(known)[:, None]
    found = predict(sent, fresh)
    assert np.abs(found - (truth if found.shape[1] == truth.shape[1] else truth[:, 1:])).max() < 1e-6


@pytest.mark.parametrize("missing", ["gaps", "no gaps", "zeros"])
def test_lightgbm_compares_ordered_categories_with_a_threshold(missing: str) -> None:
    rows = frame("category")
    rows["plan"] = rows.plan.cat.reorder_categories(["old", "free", "basic", "pro", "team"], ordered=True)
    if missing == "no gaps":
        rows = rows.dropna()
    options = {**QUIET, "zero_as_missing": missing == "zeros", "min_child_samples": 5}
    fitted = lightgbm.LGBMClassifier(**options).fit(rows.drop(columns="score"), target(rows, "binary"))
    fresh = rows.drop(columns="score").iloc[:50]
    fresh["plan"] = pd.Categorical([None, "team"] * 25, categories=rows.plan.cat.categories, ordered=True)
    for some in (None, fresh):
        check(fitted, rows, "binary", some)


def test_lightgbm_booster_with_other_options() -> None:
    rows = frame("none")
    x = rows.drop(columns="score")
    options = {"verbosity": -1, "num_leaves": 7, "objective": "binary"}
    for more in ({"zero_as_missing": True}, {"use_missing": False}, {"sigmoid": 0.7}, {"boosting": "dart"}):
        booster = lightgbm.train(options | more, lightgbm.Dataset(x, target(rows, "binary")), 5)
        check(booster, rows, "binary")
    forest = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "objective": "regression"}
    check(lightgbm.train(options | forest, lightgbm.Dataset(x, rows.score), 5), rows, "number")


@pytest.mark.parametrize("kind", ["binary", "classes", "number", "count"])
def test_xgboost(kind: str) -> None:
    rows = frame("none")
    model = xgboost.XGBClassifier if kind in ("binary", "classes") else xgboost.XGBRegressor
    options = {"objective": "count:poisson"} if kind == "count" else {}
    fitted = model(n_estimators=5, max_depth=3, **options).fit(rows.drop(columns="score"), target(rows, kind))
    check(fitted, rows, kind)


def test_xgboost_that_treats_zeros_as_missing() -> None:
    rows = frame("none")
    rows["score"] = 2.0 * (rows.visits.eq(0) | rows.visits.gt(2))
    x = rows.drop(columns="score")
    fitted = xgboost.XGBClassifier(n_estimators=5, max_depth=3, missing=0).fit(x, target(rows, "binary"))
    check(fitted, rows, "binary")
    other = x.assign(visits=x.visits.replace(0.0, 1e-9))
    assert not np.allclose(fitted.predict_proba(x), fitted.predict_proba(other))


@pytest.mark.parametrize("to_one_hot", [1, 100])  # sets of categories, and single ones
@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_xgboost_with_categories(kind: str, to_one_hot: int) -> None:
    rows = frame("category")
    rows["floor"] = pd.Categorical(np.arange(N) % 4)
    model = xgboost.XGBRegressor if kind == "number" else xgboost.XGBClassifier
    options = {"enable_categorical": True, "max_cat_to_onehot": to_one_hot}
    x = rows.drop(columns="score")
    fitted = model(n_estimators=8, max_depth=4, **options).fit(x, target(rows, kind))
    check(fitted, rows, kind)
    check(fitted, rows, kind, x.assign(plan=x.plan.where(np.arange(N) % 2 == 0), age=np.nan))


def test_xgboost_loses_names_of_categories_that_are_not_ascii() -> None:
    rows = frame("category")
    x, y = rows[["age", "plan"]].assign(plan=rows.plan.cat.rename_categories({"pro": "für Profis"})), rows.score
    fitted = xgboost.XGBRegressor(n_estimators=2, enable_categorical=True).fit(x, y)
    with pytest.raises(EstimatorUnsupported, match="plain ASCII"):
        compose(fitted, describe_inputs(x.assign(y=y), "y"), None, None)


@pytest.mark.parametrize("kind", ["binary", "texts", "classes", "number", "count"])
def test_histogram_boosting_with_categories(kind: str) -> None:
    rows = frame("category")
    model = HistGradientBoostingClassifier if kind in ("binary", "texts", "classes") else HistGradientBoostingRegressor
    options = {"loss": "poisson"} if kind == "count" else {}
    fitted = model(max_iter=5, random_state=0, **options).fit(rows.drop(columns="score"), target(rows, kind))
    fresh = rows.drop(columns="score").iloc[:40]
    check(fitted, rows, kind, fresh.assign(plan=fresh.plan.cat.add_categories(["new"]).fillna("new")))


@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_pipeline_of_scaler_one_hot_encoder_and_gradient_boosting(kind: str) -> None:
    rows = frame().fillna(38.5)
    model = GradientBoostingRegressor if kind == "number" else GradientBoostingClassifier
    columns = [("n", StandardScaler(), ["age", "amount spent", "visits"])]
    columns += [("c", OneHotEncoder(handle_unknown="ignore"), ["plan"])]
    pipeline = make_pipeline(ColumnTransformer(columns), model(n_estimators=8, random_state=0))
    pipeline.fit(rows.drop(columns="score"), target(rows, kind))
    fresh = rows.drop(columns="score").assign(plan=np.where(np.arange(N) % 3, rows.plan, "never seen"))
    check(pipeline, rows, kind, fresh)


def test_a_threshold_may_be_the_rounded_value_of_a_scaled_column() -> None:
    """Of sparse features, scikit-learn takes values themselves as thresholds."""
    rows = frame().assign(floor=np.arange(N) % 9 * 1.0).fillna(30.0)
    columns = [("n", StandardScaler(), ["visits", "floor", "age"]), ("c", OneHotEncoder(), ["plan"])]
    encoder = ColumnTransformer(columns, sparse_threshold=1.0)
    forest = RandomForestRegressor(20, max_depth=8, random_state=0)
    check(make_pipeline(encoder, forest).fit(rows.drop(columns="score"), rows.score), rows, "number")
    scaled = make_pipeline(encoder, StandardScaler(with_mean=False), forest)
    check(scaled.fit(rows.drop(columns="score"), rows.score), rows, "number")


@pytest.mark.parametrize("unknown", [-1, np.nan])
@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingClassifier(max_iter=5, categorical_features=[0, 1]),
        RandomForestClassifier(5, max_depth=6, random_state=0),
        xgboost.XGBClassifier(n_estimators=5, max_depth=3),
        make_pipeline(StandardScaler(), lightgbm.LGBMClassifier(**QUIET, min_child_samples=5)),
    ],
    ids=["histogram", "forest", "xgboost", "scaled lightgbm"],
)
def test_an_ordinal_encoder_before_trees(model: Any, unknown: float) -> None:
    rows = frame("category")
    rows = rows.assign(plan=rows.plan.astype(object), floor=np.arange(N) % 5)
    options = {"handle_unknown": "use_encoded_value", "unknown_value": unknown, "encoded_missing_value": unknown}
    columns = [("codes", OrdinalEncoder(**options), ["floor", "plan"]), ("rest", "passthrough", ["age", "visits"])]
    pipeline = make_pipeline(ColumnTransformer(columns), model).fit(rows.drop(columns="score"), target(rows, "binary"))
    fresh = rows.drop(columns="score").assign(plan=np.where(np.arange(N) % 3, rows.plan, "never seen"))
    check(pipeline, rows, "binary", fresh)


def test_unseen_values_are_refused_where_they_would_not_go_the_way_of_missing_ones() -> None:
    rows = frame("category")
    rows = rows.assign(plan=rows.plan.astype(object), score=rows.plan.isna() * 2.0)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=9)
    pipeline = make_pipeline(ColumnTransformer([("codes", encoder, ["plan"])]), DecisionTreeClassifier())
    x, y = rows.drop(columns="score"), target(rows, "binary")
    sent = compose(pipeline.fit(x, y), describe_inputs(x.assign(y=y), "y"), None, None)
    assert sent.input["columns"][0]["other"] is False
    check(pipeline, rows, "binary")


@pytest.mark.parametrize("model", [RandomForestRegressor, ExtraTreesRegressor])
def test_forests_of_numbers(model: Any) -> None:
    rows = frame("none")
    check(model(5, max_depth=5, random_state=0).fit(rows.drop(columns="score"), rows.score), rows, "number")


@pytest.mark.parametrize("model", [RandomForestClassifier(5, max_depth=5, random_state=0), DecisionTreeClassifier()])
def test_forests_of_two_classes(model: Any) -> None:
    rows = frame("none")
    check(model.fit(rows.drop(columns="score"), target(rows, "binary")), rows, "binary")


def test_a_split_of_missing_values_from_all_others_can_be_sent() -> None:
    rows = frame("none")
    rows["score"] = rows.age.isna() * 2.0  # scikit-learn's threshold is infinite
    fitted = DecisionTreeClassifier(max_depth=2).fit(rows.drop(columns="score"), target(rows, "binary"))
    assert np.isinf(fitted.tree_.threshold).any()
    check(fitted, rows, "binary")
    sent = compose(
        fitted, describe_inputs(rows.assign(y=target(rows, "binary")).drop(columns="score"), "y"), None, None
    )
    json.dumps(sent.splits, allow_nan=False)


def test_arrays_are_vectors() -> None:
    rows = frame("none").dropna()
    x = rows.drop(columns="score").to_numpy()
    y = target(rows, "binary")
    fitted = GradientBoostingClassifier(n_estimators=4, random_state=0).fit(x, y)
    sent = compose(fitted, describe_inputs({"x": x, "y": y}, "y"), None, None)
    assert sent.input == {"kind": "vector", "dim": 3}
    assert sent.architecture["trees"] == 4


def test_probabilities_of_three_classes_of_a_forest_are_not_sums_so_only_splits_are_sent() -> None:
    rows = frame("none")
    fitted = RandomForestClassifier(4, max_depth=3, random_state=0).fit(
        rows.drop(columns="score"), target(rows, "classes")
    )
    x = rows.drop(columns="score").assign(y=target(rows, "classes"))
    sent = compose(fitted, describe_inputs(x, "y"), None, None)
    assert (sent.weights, sent.loss) == (None, None)
    assert sent.target == {"kind": "classes", "values": [0, 1, 2]}
    assert len(sent.splits["feature"]) == 4


def test_unsupported_models_are_refused_with_a_reason() -> None:
    rows = frame("none").dropna()
    x, y = rows.drop(columns="score"), rows.score
    inputs = describe_inputs(x.assign(y=y), "y")
    quantile = lightgbm.LGBMRegressor(objective="quantile", **QUIET).fit(x, y)
    linear = lightgbm.LGBMRegressor(linear_tree=True, **QUIET).fit(x, y)
    started = GradientBoostingClassifier(init=LogisticRegression(max_iter=1000), n_estimators=2).fit(x, y > 1)
    weights = xgboost.XGBRegressor(booster="gblinear", n_estimators=2).fit(x, y)
    absent = xgboost.XGBRegressor(missing=-1, n_estimators=2).fit(x, y)
    median = HistGradientBoostingRegressor(loss="absolute_error", max_iter=2).fit(x, y)
    robust = GradientBoostingRegressor(loss="huber", n_estimators=2).fit(x, y)
    filled = make_pipeline(KNNImputer(), RandomForestRegressor(2)).fit(x, y)
    refused = (
        *((quantile, "quantile"), (linear, "linear_tree"), (started, "init"), (weights, "gbtree")),
        *((absent, "missing=-1.0.*NaN"), (median, "absolute_error.*Supported: .*squared_error"), (robust, "huber")),
        (filled, "of a KNNImputer are not columns. Before trees, Amend imports .*OrdinalEncoder"),
    )
    for estimator, why in refused:
        with pytest.raises(EstimatorUnsupported, match=why):
            compose(estimator, inputs, None, None)
    for estimator in (GradientBoostingClassifier(), lightgbm.LGBMClassifier(), xgboost.XGBRegressor()):
        with pytest.raises(EstimatorUnsupported, match="not fitted"):
            compose(estimator, inputs, None, None)
    with pytest.raises(EstimatorUnsupported, match="frame"):
        describe_inputs({"x": np.full((3, 3), np.nan), "y": [0, 1, 0]}, "y")
