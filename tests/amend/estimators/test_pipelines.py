"""Pipelines of many kinds predict the same after their import, and a removal brings them to a refitted head."""

from __future__ import annotations

import warnings
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

from amend import EstimatorUnsupported
from amend.estimators import Import
from amend.estimators.estimator_weights import unwrap
from amend.estimators.pipeline_columns import split_pipeline
from core.kprior import RemoveData, adapt
from core.models.spec import SpecSchema
from core.versions.onnx_export import to_onnx
from tests.amend.estimators.rows import adopted, imported, predicted, spec_of, to_examples
from tests.amend.estimators.shop import COLUMNS, COLUMNWISE, COMPUTED, NUMERIC, TEXTS, logistic, network, orders

CLASSIFIERS = COLUMNWISE | COMPUTED
CASES = {
    **{name: ("returned", make) for name, make in CLASSIFIERS.items()},
    **NUMERIC,
    "network": ("returned", network),
}
DRIFTING = ("SGD", "target encoder")
"""Heads that are not the optimum of their objective on the transformed rows."""


def fit(name: str) -> tuple[Any, pd.DataFrame]:
    """A fitted estimator, and its rows with the target `y`."""
    target, make = CASES[name]
    rows = orders(gaps=True).rename(columns={target: "y"})[[*COLUMNS, "y"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().fit(rows[COLUMNS], rows.y), rows


def expected(estimator: Any, rows: pd.DataFrame) -> Any:
    if hasattr(estimator, "predict_proba"):
        return estimator.predict_proba(rows[COLUMNS])[:, 1]
    if hasattr(estimator, "decision_function"):
        found = estimator.decision_function(rows[COLUMNS])
        return found if "SVC" in str(estimator) else (found + 1) / 2
    return estimator.predict(rows[COLUMNS])


def new_rows(estimator: Any) -> pd.DataFrame:
    """Rows that the fit did not see, with an unseen category."""
    rows = orders(60, seed=9, gaps=True)
    rows.loc[:9, "colour"] = "green"
    return rows


@pytest.mark.parametrize("name", CASES)
def test_an_imported_pipeline_predicts_what_it_did_also_with_gaps_and_unseen_values(name: str) -> None:
    estimator, rows = fit(name)
    made = imported(estimator, rows)
    SpecSchema.model_validate(spec_of(made))
    assert ("transform" in made.input) == (name in COMPUTED or name in ("network", "log1p target"))
    found = adopted(made, rows)
    for examples in (rows, new_rows(estimator)):
        want = expected(estimator, examples)
        np.testing.assert_allclose(predicted(found, made, examples)[:, 0], want, rtol=1e-6, atol=1e-6)
    if name not in (*DRIFTING, "network"):
        assert found.certificate is not None
        assert found.certificate.relative is not None
        assert found.certificate.relative < 2e-3  # the fit is the optimum of the imported objective


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("network", "SGD")])
def test_after_a_removal_the_weights_are_within_the_bound_of_a_refitted_head(name: str) -> None:
    estimator, rows = fit(name)
    made = imported(estimator, rows)
    everything = to_examples(made, rows)
    gone = torch.arange(0, 60, 3)
    removed = type(everything)(gone, everything.x[gone], everything.y[gone])
    first = adopted(made, rows)
    second = adapt(first.state, first.memory, [RemoveData([removed])])
    assert second.certificate is not None
    refit = imported(refitted(estimator, rows.drop(index=gone.tolist()), rows), rows.drop(index=gone.tolist()))
    wanted = replaced_weights(refit, made)
    apart = float((second.state.w - wanted).norm())
    assert apart <= second.certificate.bound * (1 + 1e-6) + 2e-5 * float(wanted.norm())
    assert float((first.state.w - wanted).norm()) > 5 * apart or apart < 1e-6  # the removal changed something


def refitted(estimator: Any, left: pd.DataFrame, before: pd.DataFrame) -> Any:
    """The estimator with its transformers as they are, and its head fitted on other rows."""
    inner, _ = unwrap(estimator)
    steps, last = split_pipeline(inner)
    head = clone(last)
    if getattr(head, "class_weight", None) == "balanced":
        counts = before.y.value_counts()
        head.set_params(class_weight={label: len(before) / (2 * n) for label, n in counts.items()})
    if isinstance(last, PoissonRegressor):  # its loss is a mean
        head.set_params(alpha=last.alpha * len(before) / len(left))
    if isinstance(last, SGDClassifier):  # the optimum of its objective
        head = logistic(C=1 / (last.alpha * len(before)))
    if hasattr(last, "alpha_"):
        head = Ridge(last.alpha_)
    if hasattr(last, "C_"):
        head = logistic(C=float(np.atleast_1d(last.C_)[0]))
    z = left[COLUMNS]
    for step in steps:
        z = step.transform(z)
    y = getattr(estimator, "func", lambda values: values)(left.y)
    pipe = make_pipeline(*steps, head.fit(z, y))
    if not hasattr(estimator, "regressor_"):
        return pipe
    again = copy(estimator)
    again.regressor_ = pipe
    return again


def replaced_weights(refit: Import, made: Import) -> Any:
    assert refit.input == made.input
    return torch.tensor(refit.weights).double()


@pytest.mark.parametrize("name", [*COMPUTED, *NUMERIC, "network", "ridge classifier"])
def test_onnx_predicts_the_same(name: str) -> None:
    estimator, rows = fit(name)
    made = imported(estimator, rows)
    examples = new_rows(estimator)
    session = onnxruntime.InferenceSession(to_onnx(adopted(made, rows).state, "orders", 1))
    texts = examples[TEXTS].astype(object).where(examples[TEXTS].notna(), "")
    given = {
        column["name"]: (texts if column["name"] in TEXTS else examples.astype(dict.fromkeys(COLUMNS[:3], "float32")))[
            [column["name"]]
        ].to_numpy()
        for column in made.input["columns"]
    }
    found = session.run(None, given)[0][:, 0]
    np.testing.assert_allclose(found, expected(estimator, examples), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (CalibratedClassifierCV(LogisticRegression(), cv=2), "Import the estimator that it calibrates"),
        (GaussianNB(), "Fit a LogisticRegression"),
        (
            make_pipeline(QuantileTransformer(n_quantiles=8), MLPClassifier((2,), tol=1.0, random_state=0)),
            "Replace it with one of the supported steps",
        ),
        (
            make_pipeline(FunctionTransformer(partial(np.clip, a_min=0, a_max=9)), LogisticRegression()),
            "A FunctionTransformer of 'partial' cannot be imported. Use one of NumPy's log1p",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_name_an_alternative(estimator: Any, why: str) -> None:
    rows = orders(80)[["size", "price", "returned"]].rename(columns={"returned": "y"})
    with pytest.raises(EstimatorUnsupported, match=why):
        imported(estimator.fit(rows[["size", "price"]], rows.y), rows)


def test_converted_steps_keep_the_names_of_columns() -> None:
    rows = orders(80)[["size", "price", "returned"]].rename(columns={"returned": "y", "price": "price in €"})
    columns = [("q", QuantileTransformer(n_quantiles=8), ["price in €"]), ("rest", StandardScaler(), ["size"])]
    estimator = make_pipeline(ColumnTransformer(columns), LogisticRegression())
    made = imported(estimator.fit(rows.drop(columns="y"), rows.y), rows)
    assert made.content is not None
    assert {one.name for one in onnxruntime.InferenceSession(made.content).get_inputs()} == {"size", "price in €"}


def test_columns_that_converted_steps_do_not_read_are_not_sent() -> None:
    """Their values would be part of the spec, which erasures do not change."""
    rows = orders(80)[["size", "returned"]].rename(columns={"returned": "y"})
    rows.insert(0, "name", [f"order {i}" for i in range(80)])
    steps = ColumnTransformer([("q", QuantileTransformer(n_quantiles=8), [1])])
    made = imported(make_pipeline(steps, LogisticRegression()).fit(rows.drop(columns="y"), rows.y), rows)
    assert made.content is not None
    assert made.input["columns"] == [{"name": "size", "type": "number"}]
    assert "name" not in made.examples.column_names


def words_of(step: Any, **more: Any) -> Any:
    others = [("more", StandardScaler(), ["size"])] if more.pop("mixed", False) else []
    return make_pipeline(ColumnTransformer([("words", step, "text"), *others], **more), LogisticRegression())


WORDS = TfidfVectorizer(token_pattern="[a-zA-Z0-9_]+")


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (WORDS, "onnx"),
        (make_pipeline(WORDS, TruncatedSVD(2)), "onnx"),
        (FeatureUnion([("one", WORDS), ("two", CountVectorizer(token_pattern="[a-zA-Z0-9_]+"))]), "onnx"),
        (HashingVectorizer(n_features=64), "hashing"),
    ],
    ids=["words", "components", "union", "hashing"],
)
def test_a_column_transformer_of_texts_takes_any_text(step: Any, kind: str) -> None:
    """As a category, each text that the fit did not see would be the same unseen value."""
    texts = ["good day", "bad night", "good night", "bad bad day", "good", "night"] * 5
    rows = pd.DataFrame({"text": texts, "y": [int("good" in text) for text in texts]})
    made = imported(words_of(step).fit(rows[["text"]], rows.y), rows)
    assert (made.input, made.architecture["encoder"]["kind"]) == ({"kind": "text"}, kind)


def test_texts_next_to_other_columns_are_refused() -> None:
    rows = pd.DataFrame({"text": ["good day", "bad night"] * 9, "size": range(18), "y": [1, 0] * 9})
    estimator = words_of(WORDS, mixed=True).fit(rows.drop(columns="y"), rows.y)
    with pytest.raises(EstimatorUnsupported, match="A TfidfVectorizer next to other columns.*alone, or import"):
        imported(estimator, rows)


def test_dropped_columns_are_not_sent() -> None:
    estimator, rows = fit("splines")
    named = rows.assign(name=[f"order {i}" for i in range(len(rows))])
    again = clone(estimator).fit(named.drop(columns="y"), named.y)
    made = imported(again, named)
    assert [column["name"] for column in made.input["columns"]] == COLUMNS
    np.testing.assert_allclose(
        predicted(adopted(made, named), made, named)[:, 0], again.predict_proba(named)[:, 1], atol=1e-6
    )


def test_an_array_through_components_keeps_its_predictions() -> None:
    from sklearn.decomposition import PCA

    x = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32).astype(float)
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    estimator = make_pipeline(StandardScaler(), PCA(3), logistic()).fit(x, y)
    made = imported(estimator, {"x": x, "y": y})
    assert made.input["kind"] == "vector"
    np.testing.assert_allclose(
        predicted(adopted(made, {"x": x, "y": y}), made, {"x": x, "y": y})[:, 0],
        estimator.predict_proba(x)[:, 1],
        atol=1e-6,
    )
