"""An imported estimator predicts the same through REST, both ways of the client, MLflow and ONNX.

This includes missing values, unseen categories, log-transformed targets, several classes and all kinds of encoders.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np
import onnxruntime
import pandas as pd
import torch
import xgboost
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, QuantileTransformer, SplineTransformer, StandardScaler

from amend import Client
from core.tables.jobs import JobKind
from tests.amend.estimators.shop import COLUMNS, NUMBERS, TEXTS, orders
from tests.amend.estimators.test_torch_modules import rows_of, trained
from tests.core.tracking.test_loading import elsewhere
from tests.core.tracking.tracked_model import TrackedModel
from tests.stack import Stack
from tests.worker.texts import reviews


class Case(NamedTuple):
    """A fitted estimator with the rows of its fit, other inputs, and what it predicts for these."""

    estimator: Any
    rows: Any
    fresh: Any
    truth: NDArray[Any]
    options: dict[str, Any]


def tabular(estimator: Any, target: str, categories: bool = False, gaps: bool = True) -> Case:
    """An estimator of orders; the new ones have unseen values of both categories, unless these are pandas types."""
    rows, fresh = orders(150, 0, gaps), orders(40, 1, gaps)
    if categories:
        for name in TEXTS:
            rows[name] = rows[name].astype("category")
            fresh[name] = pd.Categorical(fresh[name], rows[name].cat.categories)
    else:
        fresh.loc[:4, TEXTS] = "never seen"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(rows[COLUMNS], rows[target])
        found = estimator.predict_proba(fresh[COLUMNS]) if hasattr(estimator, "predict_proba") else None
    truth = estimator.predict(fresh[COLUMNS]) if found is None else found[:, 1] if found.shape[1] == 2 else found
    return Case(estimator, rows[[*COLUMNS, target]], fresh[COLUMNS], truth, {"target": target})


def steps(numbers: Any, texts: Any, last: Any) -> Any:
    return make_pipeline(ColumnTransformer([("texts", texts, TEXTS), ("numbers", numbers, NUMBERS)]), last)


def text(vectorizer: Any) -> Case:
    texts, labels = reviews(80)
    rows = pd.DataFrame({"text": texts, "y": labels})
    estimator = make_pipeline(vectorizer, LogisticRegression(C=5)).fit(rows.text, rows.y)
    fresh = [*texts[:10], "", "words that nobody wrote"]
    return Case(estimator, rows, fresh, estimator.predict_proba(fresh)[:, 1], {})


def images(frozen: bool) -> Case:
    target = {"kind": "classes", "values": ["a", "b", "c"]}
    rows = rows_of((2, 6, 6), target, 60)
    nn = torch.nn
    layers = (nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(48, 3))
    module = trained(nn.Sequential(*layers), torch.tensor(rows["x"]))
    if frozen:
        module[:-1].requires_grad_(False)
    fresh = rows_of((2, 6, 6), target, 20)["x"] + 0.1
    with torch.no_grad():
        truth = module(torch.tensor(fresh)).softmax(1).numpy()
    return Case(module, rows, fresh, truth, {"outputs": target})


CASES: dict[str, Callable[[], Case]] = {
    "columns": lambda: tabular(
        steps(
            make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()),
            OneHotEncoder(handle_unknown="ignore"),
            LogisticRegression(),
        ),
        "returned",
    ),
    "steps, log target": lambda: tabular(
        TransformedTargetRegressor(
            steps(
                make_pipeline(SimpleImputer(), SplineTransformer(4)), OneHotEncoder(handle_unknown="ignore"), Ridge(3.0)
            ),
            func=np.log,
            inverse_func=np.exp,
        ),
        "cost",
    ),
    "converted steps": lambda: tabular(
        steps(QuantileTransformer(n_quantiles=20), OneHotEncoder(handle_unknown="ignore"), LogisticRegression()),
        "returned",
        gaps=False,
    ),
    "lightgbm": lambda: tabular(
        lightgbm.LGBMClassifier(n_estimators=6, num_leaves=5, min_data_per_group=5, verbosity=-1), "returned", True
    ),
    "xgboost": lambda: tabular(
        xgboost.XGBRegressor(n_estimators=5, max_depth=3, objective="count:poisson", enable_categorical=True),
        "calls",
        True,
    ),
    "histogram boosting": lambda: tabular(HistGradientBoostingRegressor(max_iter=5), "cost", True),
    "forest after ordinal encoder": lambda: tabular(
        steps(
            "passthrough",
            OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1),
            RandomForestClassifier(5, max_depth=5, random_state=0),
        ),
        "returned",
    ),
    "words": lambda: text(TfidfVectorizer(token_pattern="[a-zA-Z0-9_]+")),
    "hashed words": lambda: text(HashingVectorizer(n_features=256)),
    "network": lambda: images(frozen=False),
    "frozen body": lambda: images(frozen=True),
}


def plain(case: Case) -> list[Any]:
    """The new inputs as JSON values."""
    if not isinstance(case.fresh, pd.DataFrame):
        return case.fresh if isinstance(case.fresh, list) else case.fresh.tolist()
    values = case.fresh.astype(object)
    return values.where(values.notna(), None).to_dict("records")


def numbers(outputs: list[Any]) -> NDArray[np.float64]:
    """The predictions in responses of the service or of MLflow."""
    return np.array([list(o["probabilities"].values()) if o.get("probabilities") else o["mean"] for o in outputs])


def run_onnx(content: bytes, case: Case) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(content)
    if isinstance(case.fresh, pd.DataFrame):
        texts = case.fresh[TEXTS].astype(object)
        given = {name: texts[[name]].where(texts[[name]].notna(), "").to_numpy(object) for name in TEXTS}
        given |= {name: case.fresh[[name]].to_numpy(np.float32) for name in NUMBERS}
    elif isinstance(case.fresh, list):
        given = {session.get_inputs()[0].name: np.array(case.fresh, object)}
    else:
        given = {"x": case.fresh}
    return np.asarray(session.run(None, given)[0]).reshape(case.truth.shape)


def test_all_ways_to_predict_agree_with_the_estimator(service: Stack, server: str, tmp_path: Path) -> None:
    cases = {kind: make() for kind, make in CASES.items()}
    names, asked, rest, models = {}, {}, {}, {}
    with Client(service.url, service.admin_key) as client, service.client() as api:
        for i, (kind, case) in enumerate(cases.items()):
            names[kind] = f"imported-{i}"
            client.import_model(names[kind], case.estimator, case.rows, **case.options)
            models[kind] = TrackedModel(service.database, service.settings, names[kind])
            models[kind].job(JobKind.ADAPT)
            answer = api.post(f"/v1/models/{names[kind]}/predictions", json={"inputs": plain(case)})
            rest[kind] = answer.raise_for_status().json()["outputs"]
            asked[kind] = (f"{names[kind]}@champion", plain(case))
            ways = {"REST": numbers(rest[kind]), "client": client.predict(names[kind], case.fresh).to_numpy()}
            if not isinstance(case.fresh, list):
                ways["table"] = client.predict_table(names[kind], case.fresh).to_numpy()
            if kind != "hashed words":  # ONNX has no operator for it
                ways["ONNX"] = run_onnx(client.export_onnx(names[kind], 1), case)
            for way, found in ways.items():
                np.testing.assert_allclose(found, case.truth, rtol=1e-6, atol=1e-6, err_msg=f"{kind}: {way}")
    models["columns"].publish(server)
    for kind, forms in elsewhere(server, asked, tmp_path).items():
        for outputs in forms:
            assert outputs == rest[kind], kind
