"""Contributions of the columns of imported models: they add up, belong to the right column, and agree with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from amend.estimators import Import
from core.inference.explanations import INTERCEPT
from core.inference.loaded_model import LoadedModel
from core.inference.text_hashing import hashing_encoder
from core.kprior import Predictor, State, adopt
from core.kprior.model.text_storage import to_array
from core.models.spec import SpecSchema
from core.versions import imported_weights
from tests.amend.estimators.rows import adopted, imported, raw_inputs, spec_of, to_examples
from tests.amend.estimators.shop import COLUMNS, COLUMNWISE, COMPUTED, NUMERIC, orders
from tests.amend.estimators.test_pipelines import fit, new_rows
from tests.amend.estimators.test_trees import frame, target

NOT_ADDITIVE = ("polynomial", "interactions of all", "normalizer")
CASES = [name for name in COLUMNWISE | COMPUTED | NUMERIC if name not in ("SGD", "grid search", "cross-validated C")]


def outputs_of(state: State, x: Any) -> Any:
    return state.predictor.outputs(state.w, torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("name", CASES)
def test_a_column_of_a_pipeline_contributes_what_the_output_changes_with_it(name: str) -> None:
    estimator, rows = fit(name)
    made = imported(estimator, rows)
    state = adopted(made, rows).state
    model, x = LoadedModel.from_state(state), raw_inputs(made, new_rows(estimator))
    found = pd.DataFrame(model.explain(x))
    assert list(found) == [*COLUMNS, INTERCEPT]
    np.testing.assert_allclose(found.sum(axis=1), outputs_of(state, x)[:, 0], rtol=1e-9, atol=1e-9)
    if name in NOT_ADDITIVE:
        return
    for j, column in enumerate(COLUMNS):
        other = x.copy()
        other[:, j] = np.roll(other[:, j], 1)
        changed = pd.DataFrame(model.explain(other)) - found
        np.testing.assert_allclose(changed.drop(columns=column), 0, atol=1e-9)
        np.testing.assert_allclose(changed[column], (outputs_of(state, other) - outputs_of(state, x))[:, 0], atol=1e-8)


def test_an_absent_column_and_an_undefined_feature_contribute_nothing() -> None:
    """The norm of a row of zeros is 0, and the steps ignore a column."""
    rows = orders()[["size", "price", "visits", "cost"]].rename(columns={"cost": "y"})
    chosen = ColumnTransformer([("numbers", Normalizer(), ["size", "price"])])
    made = imported(make_pipeline(chosen, Ridge()).fit(rows.drop(columns="y"), rows.y), rows)
    state = adopted(made, rows).state
    x = np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)
    zero, other = LoadedModel.from_state(state).explain(x)
    assert zero == {"size": 0.0, "price": 0.0, INTERCEPT: other[INTERCEPT]}
    assert sum(other.values()) == pytest.approx(outputs_of(state, x)[1, 0])


def adopted_trees(sent: Import, rows: pd.DataFrame) -> State:
    spec = SpecSchema.model_validate({**spec_of(sent), "regularizer": {"kind": "l2", "delta": 10.0}}).plain()
    given = imported_weights.check(spec, sent.weights, None, sent.splits)
    assert given.w is not None
    return adopt(spec, given.w, [to_examples(sent, rows)], len(rows), units=given.splits).state


@pytest.mark.parametrize("categories", ["category", "none"])
def test_contributions_to_trees_are_those_of_xgboost(categories: str) -> None:
    """XGBoost's approximate contributions follow the paths of a row, too, and weight leaves by their curvature."""
    rows = frame(categories)
    x = rows.drop(columns="score")
    booster = xgboost.XGBRegressor(n_estimators=8, max_leaves=7, enable_categorical=True).fit(x, rows.score)
    examples = x.assign(y=rows.score)
    sent = imported(booster, examples)
    model = LoadedModel.from_state(adopted_trees(sent, examples))
    data = xgboost.DMatrix(x, enable_categorical=True)
    expected = booster.get_booster().predict(data, pred_contribs=True, approx_contribs=True)
    found = pd.DataFrame(model.explain(raw_inputs(sent, x)))
    assert list(found) == [*x.columns, INTERCEPT]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_contributions_to_a_class_of_trees_are_those_to_its_lead_over_the_mean() -> None:
    rows = frame()
    x = rows.drop(columns="score")
    x = x.assign(plan=x.plan.astype("category"))
    y = target(rows, "classes")
    booster = xgboost.XGBClassifier(n_estimators=4, max_leaves=5, enable_categorical=True).fit(x, y)
    examples = x.assign(y=y)
    sent = imported(booster, examples)
    state = adopted_trees(sent, examples)
    given = raw_inputs(sent, x)
    f = outputs_of(state, given)
    found = pd.DataFrame(LoadedModel.from_state(state).explain(given))
    np.testing.assert_allclose(found.sum(axis=1), f.max(1) - f.mean(1), atol=1e-9)
    state.anchor.__dict__["curvature"] = None  # as of imported heads that are too wide for it
    again = pd.DataFrame(LoadedModel.from_state(state).explain(given))
    np.testing.assert_allclose(again.sum(axis=1), f.max(1) - f.mean(1), atol=1e-9)


def test_words_of_a_text_contribute_to_its_output() -> None:
    spec: Any = {"input": {"kind": "text"}, "target": {"kind": "binary"}}
    spec["architecture"] = {"kind": "linear", "encoder": {"kind": "hashing", "features": 8}}
    model = LoadedModel(Predictor(spec), torch.arange(1.0, 10.0, dtype=torch.float64))
    model.encode = hashing_encoder(8)
    texts = to_array(["To be, or not to be: that is the question", "", "be"])
    first, empty, single = model.explain(texts)
    means = model.predict_means(texts)[:, 0]
    for found, mean in zip((first, empty, single), means, strict=True):
        assert sum(found.values()) == pytest.approx(np.log(mean / (1 - mean)), abs=1e-5)
    assert list(first) == ["to", "be", "or", "not", "that", "is", "the", "question", INTERCEPT]
    assert empty == {INTERCEPT: 9.0}
    assert list(single) == ["be", INTERCEPT]
