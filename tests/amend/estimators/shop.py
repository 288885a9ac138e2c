"""Fitted estimators of many kinds on the orders of a shop, with missing values, rare categories and a heavy tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC

NUMBERS, TEXTS = ["size", "price", "visits"], ["colour", "depot"]
COLUMNS = NUMBERS + TEXTS


def orders(n: int = 400, seed: int = 0, gaps: bool = False) -> pd.DataFrame:
    """Orders: whether each was returned, what it cost, how many calls it took."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "size": rng.normal(7, 2, n),
            "price": rng.lognormal(3, 0.8, n),
            "visits": rng.poisson(2, n).astype(float),
            "colour": rng.choice(["red", "blue", "grey", "pink"], n, p=[0.5, 0.3, 0.16, 0.04]),
            "depot": rng.choice(["north", "south", "east"], n),
        }
    )
    f = 0.4 * (made.visits - 2) - 0.3 * (made["size"] - 7) + (made.colour == "red") - 0.3 * np.log(made.price)
    made["returned"] = (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int)
    made["cost"] = made.price * np.exp(rng.normal(0, 0.3, n)) + made["size"].clip(lower=1)
    made["calls"] = rng.poisson(np.exp(0.3 * f))
    if gaps:
        made.loc[rng.random(n) < 0.1, "size"] = np.nan
        made.loc[rng.random(n) < 0.1, "price"] = np.nan
        made.loc[rng.random(n) < 0.1, "depot"] = np.nan
    return made


def logistic(**options: Any) -> LogisticRegression:
    return LogisticRegression(**{"max_iter": 20_000, "tol": 1e-9, "C": 0.5, **options})


def pipeline(numbers: Any, last: Any, texts: Any = None, **one_hot: Any) -> Any:
    encoder = texts or OneHotEncoder(**one_hot)
    return make_pipeline(ColumnTransformer([("numbers", numbers, NUMBERS), ("texts", encoder, TEXTS)]), last)


def imputed(*more: Any, **options: Any) -> Any:
    return make_pipeline(SimpleImputer(**options), StandardScaler(), *more)


def scaled(*more: Any) -> Any:
    return make_pipeline(StandardScaler(), *more)


IGNORE = {"handle_unknown": "ignore"}
TIGHT = {"max_iter": 20_000, "tol": 1e-9}
CODES: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "encoded_missing_value": -2}
FREQUENT = {"strategy": "most_frequent"}
COLUMNWISE: dict[str, Callable[[], Any]] = {
    "imputer, scaler, one-hot": lambda: pipeline(imputed(), logistic(), **IGNORE),
    "median with indicator": lambda: pipeline(imputed(strategy="median", add_indicator=True), logistic(), **IGNORE),
    "constant": lambda: pipeline(imputed(strategy="constant", fill_value=-1.0), logistic(), **IGNORE),
    "imputer after scaler": lambda: pipeline(make_pipeline(StandardScaler(), SimpleImputer()), logistic(), **IGNORE),
    "drop first": lambda: pipeline(imputed(), logistic(), drop="first", **IGNORE),
    "balanced": lambda: pipeline(imputed(), logistic(class_weight="balanced"), **IGNORE),
    "robust": lambda: pipeline(make_pipeline(RobustScaler(), SimpleImputer()), logistic(), **IGNORE),
    "min-max": lambda: pipeline(make_pipeline(MinMaxScaler(), SimpleImputer()), logistic(), **IGNORE),
    "max-abs": lambda: pipeline(make_pipeline(MaxAbsScaler(), SimpleImputer()), logistic(), **IGNORE),
    "rare values together": lambda: pipeline(
        imputed(), logistic(), min_frequency=30, handle_unknown="infrequent_if_exist"
    ),
    "grid search": lambda: GridSearchCV(
        pipeline(imputed(), logistic(), **IGNORE), {"logisticregression__C": [0.2, 1]}, cv=2
    ),
    "cross-validated C": lambda: pipeline(
        imputed(),
        LogisticRegressionCV(
            Cs=[0.1, 1.0],
            cv=2,
            l1_ratios=(0,),
            max_iter=20_000,
            tol=1e-9,
            scoring="neg_log_loss",
            use_legacy_attributes=False,
        ),
        **IGNORE,
    ),
    "SGD": lambda: pipeline(
        imputed(), SGDClassifier(loss="log_loss", alpha=1e-2, random_state=0, max_iter=5000, tol=1e-9), **IGNORE
    ),
    "ridge classifier": lambda: pipeline(imputed(), RidgeClassifier(2.0), **IGNORE),
}
"""Pipelines that become columns in units; all of them accept gaps and unseen values."""
COMPUTED: dict[str, Callable[[], Any]] = {
    "ordinal": lambda: pipeline(
        imputed(),
        logistic(),
        OrdinalEncoder(**CODES),
    ),
    "target encoder": lambda: pipeline(imputed(), logistic(), TargetEncoder(random_state=0)),
    "imputed categories": lambda: pipeline(
        imputed(), logistic(), make_pipeline(SimpleImputer(**FREQUENT), OneHotEncoder(**IGNORE))
    ),
    "constant category": lambda: pipeline(
        imputed(),
        logistic(),
        make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder(**IGNORE)),
    ),
    "rare values, unseen ignored": lambda: pipeline(imputed(), logistic(), min_frequency=100, **IGNORE),
    "log1p": lambda: pipeline(make_pipeline(SimpleImputer(), FunctionTransformer(np.log1p)), logistic(), **IGNORE),
    "polynomial": lambda: pipeline(imputed(PolynomialFeatures(2, include_bias=False)), logistic(), **IGNORE),
    "interactions of all": lambda: make_pipeline(
        *(step for _, step in pipeline(imputed(), logistic(), **IGNORE).steps[:-1]),
        PolynomialFeatures(2, interaction_only=True, include_bias=False),
        logistic(),
    ),
    "bins": lambda: pipeline(make_pipeline(SimpleImputer(), KBinsDiscretizer(5)), logistic(), **IGNORE),
    "ordinal bins": lambda: pipeline(
        make_pipeline(SimpleImputer(), KBinsDiscretizer(5, encode="ordinal")), logistic(), **IGNORE
    ),
    "splines": lambda: pipeline(make_pipeline(SimpleImputer(), SplineTransformer(5)), logistic(), **IGNORE),
    "linear splines": lambda: pipeline(
        make_pipeline(SimpleImputer(), SplineTransformer(4, degree=2, extrapolation="linear", include_bias=False)),
        logistic(),
        **IGNORE,
    ),
    "components": lambda: pipeline(imputed(PCA(2, whiten=True)), logistic(), **IGNORE),
    "components of all": lambda: make_pipeline(
        *(step for _, step in pipeline(imputed(), logistic(), **IGNORE).steps[:-1]), TruncatedSVD(4), logistic()
    ),
    "clipped": lambda: pipeline(make_pipeline(SimpleImputer(), MinMaxScaler(clip=True)), logistic(), **IGNORE),
    "normalizer": lambda: pipeline(imputed(Normalizer()), logistic(), **IGNORE),
    "binarizer": lambda: pipeline(make_pipeline(SimpleImputer(), Binarizer(threshold=3.0)), logistic(), **IGNORE),
    "selection": lambda: make_pipeline(
        *(step for _, step in pipeline(imputed(), logistic(), **IGNORE).steps[:-1]), SelectKBest(k=4), logistic()
    ),
    "union": lambda: pipeline(
        make_pipeline(SimpleImputer(), FeatureUnion([("a", StandardScaler()), ("b", FunctionTransformer(np.square))])),
        logistic(),
        **IGNORE,
    ),
    "penalised intercept": lambda: pipeline(imputed(), LinearSVC(C=0.3, dual=False, **TIGHT), **IGNORE),
}
"""Pipelines whose steps the model computes."""
NUMERIC: dict[str, tuple[str, Callable[[], Any]]] = {
    "ridge": ("cost", lambda: pipeline(imputed(), Ridge(2.0), **IGNORE)),
    "ridge with its alpha by cross-validation": ("cost", lambda: pipeline(imputed(), RidgeCV([0.5, 5.0]), **IGNORE)),
    "log target": (
        "cost",
        lambda: TransformedTargetRegressor(pipeline(imputed(), Ridge(2.0), **IGNORE), func=np.log, inverse_func=np.exp),
    ),
    "log1p target": (
        "calls",
        lambda: TransformedTargetRegressor(
            pipeline(imputed(SplineTransformer(4)), Ridge(2.0), **IGNORE), func=np.log1p, inverse_func=np.expm1
        ),
    ),
    "counts": (
        "calls",
        lambda: pipeline(imputed(), PoissonRegressor(alpha=0.01, solver="newton-cholesky", tol=1e-10), **IGNORE),
    ),
}


def network() -> Any:
    last = MLPClassifier((8,), max_iter=60, tol=1e-2, random_state=0)
    return pipeline(imputed(), last, **IGNORE)
