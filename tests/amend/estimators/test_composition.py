"""An imported estimator predicts what it did, and is the optimum of the model that it becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import (
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC

from amend import EstimatorUnsupported
from amend.errors import FrameInvalid
from amend.estimators import compose, describe_inputs
from core.kprior import AddData, RemoveData, adapt
from tests.amend.estimators.rows import adopted, arrays, expected, frame, imported, predicted, spec_of, to_examples

TIGHT = {"tol": 1e-9, "max_iter": 20_000}
LINEAR = {
    "binary": LogisticRegression(C=0.5, **TIGHT),
    "words": LogisticRegression(C=0.5, **TIGHT),
    "classes": LogisticRegression(C=0.2, **TIGHT),
    "number": Ridge(alpha=3.0, solver="cholesky"),
    "count": PoissonRegressor(alpha=0.01, solver="newton-cholesky", tol=1e-10),
}


def columns(scaler: Any = "passthrough") -> ColumnTransformer:
    encoder = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer([("plan", encoder, ["plan"]), ("numbers", scaler, ["age", "pay"])])


def close(ours: Any, theirs: Any, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(ours, theirs[:, -1:] if ours.shape[1] == 1 else theirs, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("where", ["array", "scaled array", "scaled frame"])
def test_a_converged_linear_estimator_is_the_optimum_of_its_import(kind: str, where: str) -> None:
    """So C, alpha and the scalers mean the same here as there."""
    examples = frame(300, kind) if where == "scaled frame" else arrays(300, kind)
    steps = {"array": [], "scaled array": [StandardScaler()], "scaled frame": [columns(StandardScaler())]}[where]
    estimator = make_pipeline(*steps, clone(LINEAR[kind]))
    x = examples.drop(columns="y") if where == "scaled frame" else examples["x"]
    estimator.fit(x, examples["y"])
    made = imported(estimator, examples)
    found = adopted(made, examples)
    close(predicted(found, made, examples), expected(estimator, x))
    assert found.certificate is not None
    assert found.certificate.relative < 1e-4
    assert found.cost.data_passes == 1


@pytest.mark.parametrize("where", ["array", "scaled frame"])
def test_a_support_vector_machine_is_the_optimum_of_its_import(where: str) -> None:
    """Its penalty is on the intercept as well; a squared hinge has no factor of a half, and C is 1 / delta."""
    examples: Any = frame(300, "binary") if where == "scaled frame" else arrays(300, "binary")
    examples["weight"] = np.random.default_rng(4).uniform(0.2, 5.0, 300)
    last = LinearSVC(C=0.5, dual=False, tol=1e-10, class_weight={1: 3.0})
    x = examples.drop(columns=["y", "weight"]) if where == "scaled frame" else examples["x"]
    steps = [("columns", columns(StandardScaler()))] if where == "scaled frame" else []
    estimator = Pipeline([*steps, ("last", last)]).fit(x, examples["y"], last__sample_weight=examples["weight"])
    made = imported(estimator, examples)
    assert (made.loss, made.class_weight) == ("squared_hinge", {"0": 1.0, "1": 3.0})
    found = adopted(made, examples)
    np.testing.assert_allclose(predicted(found, made, examples)[:, 0], estimator.decision_function(x), atol=1e-6)
    assert found.certificate is not None
    assert found.certificate.relative < 1e-4


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("where", ["array", "frame"])
def test_a_fit_with_weights_is_the_optimum_of_its_import(kind: str, where: str) -> None:
    examples: Any = frame(300, kind) if where == "frame" else arrays(300, kind)
    weight = np.random.default_rng(4).uniform(0.2, 5.0, 300)
    examples["weight"] = weight
    x = examples.drop(columns=["y", "weight"]) if where == "frame" else examples["x"]
    last = clone(LINEAR[kind])
    if isinstance(last, LogisticRegression):
        last.set_params(class_weight={np.unique(examples["y"])[-1]: 3.0})
    steps = [("columns", columns(StandardScaler()))] if where == "frame" else []
    estimator = Pipeline([*steps, ("last", last)]).fit(x, examples["y"], last__sample_weight=weight)
    found = adopted(imported(estimator, examples), examples)
    assert found.certificate is not None
    assert found.certificate.relative < 1e-4


@pytest.mark.parametrize("kind", LINEAR)
def test_after_a_change_the_weights_are_within_the_bound_of_a_fresh_fit(kind: str) -> None:
    """Though the import was stopped early: what it lacks is carried."""
    first, more = frame(400, kind), frame(40, kind, seed=1)
    rough = clone(LINEAR[kind])
    rough.set_params(**({"max_iter": 4} if kind != "number" else {"solver": "sag", "max_iter": 2, "random_state": 0}))
    pipeline = make_pipeline(columns(StandardScaler()), rough)
    with pytest.warns(ConvergenceWarning):
        pipeline.fit(first.drop(columns="y"), first.y)
    made = imported(pipeline, first)
    base = adopted(made, first)
    close(predicted(base, made, first), expected(pipeline, first.drop(columns="y")))
    old, new = to_examples(made, first), to_examples(made, more)
    new = type(new)(new.key + len(first), new.x, new.y)
    removed = old.take(old.key < 30)
    result = adapt(base.state, base.memory, [AddData([new]), RemoveData([removed])])
    assert result.certificate is not None
    # the truth: a fit of the rows that are left, with the same units
    kept = frame(400, kind).iloc[30:]
    both = type(kept)({name: np.concatenate([kept[name], more[name]]) for name in kept})
    x = pipeline[0].transform(both.drop(columns="y"))
    truth = clone(LINEAR[kind])
    if kind == "count":
        truth.set_params(alpha=LINEAR[kind].alpha * len(first) / len(both))
    truth.fit(x, both.y)
    fresh = imported(make_pipeline(pipeline[0], truth), both)
    w = torch.tensor(fresh.weights).double()
    if kind == "classes":  # a constant added to all biases says the same
        w = w.view(3, -1)
        w[:, -1] -= w[:, -1].mean()
    assert float((result.state.w - w.reshape(-1)).norm()) <= result.certificate.bound + 1e-5


def test_an_unpenalised_regression_keeps_its_weights() -> None:
    for examples in (frame(200, "number").drop(columns="plan"), arrays(200, "number")):
        x = examples["x"] if isinstance(examples, dict) else examples.drop(columns="y")
        estimator = LinearRegression().fit(x, examples["y"])
        made = imported(estimator, examples)
        found = adopted(made, examples)
        close(predicted(found, made, examples), expected(estimator, x), atol=1e-5)
        assert found.certificate is not None
        assert found.certificate.relative < 1e-4


@pytest.mark.parametrize("kind", ["binary", "words", "classes", "number"])
@pytest.mark.parametrize("where", ["array", "frame"])
def test_imported_networks_give_the_same_predictions(kind: str, where: str) -> None:
    examples = frame(150, kind) if where == "frame" else arrays(150, kind)
    steps = [columns(StandardScaler())] if where == "frame" else [StandardScaler()]
    network = MLPRegressor if kind == "number" else MLPClassifier
    estimator = make_pipeline(*steps, network(hidden_layer_sizes=(7, 5), max_iter=20, random_state=0))
    x = examples.drop(columns="y") if where == "frame" else examples["x"]
    with pytest.warns(ConvergenceWarning):
        estimator.fit(x, examples["y"])
    made = imported(estimator, examples)
    assert made.architecture == {"kind": "mlp", "hidden": [7, 5]}
    close(predicted(adopted(made, examples), made, examples), expected(estimator, x), atol=1e-5)


def test_an_imported_network_has_the_objective_of_its_fit() -> None:
    """So alpha means the same here as there."""
    examples = arrays(120, "number")
    estimator = MLPRegressor(
        hidden_layer_sizes=(3,), solver="lbfgs", alpha=0.1, max_iter=20_000, tol=1e-12, random_state=3
    )
    estimator.fit(examples["x"], examples["y"])
    made = imported(estimator, examples)
    state, data = adopted(made, examples).state, to_examples(made, examples)
    losses = state.predictor.family.loss(data.y, state.predictor.outputs(state.w, data.x))
    assert float(losses.sum() + state.regularizer.value(state.w)) == pytest.approx(120 * estimator.loss_, rel=1e-5)


def test_torch_layers_become_a_network() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *(torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(6, 3))
    )
    x = np.random.default_rng(0).normal(size=(20, 1, 2, 2)).astype(np.float32)
    examples = {"x": x, "y": np.arange(20) % 3}
    made = imported(module, examples, outputs={"kind": "classes", "values": [0, 1, 2]})
    assert made.input == {"kind": "image", "shape": [1, 2, 2]}
    truth = torch.softmax(module.eval()(torch.from_numpy(x)), 1).detach().numpy()
    close(predicted(adopted(made, examples), made, examples), truth)
    tensors = {name: torch.from_numpy(values) for name, values in examples.items()}
    assert imported(module, tensors, outputs=made.target).weights == made.weights
    relu = torch.nn.ReLU()
    again = torch.nn.Sequential(
        *(torch.nn.Flatten(), torch.nn.Linear(4, 6), relu, torch.nn.Linear(6, 6), relu, torch.nn.Linear(6, 3))
    )
    assert imported(again, examples, outputs=made.target).architecture == {"kind": "mlp", "hidden": [6, 6]}
    with pytest.raises(EstimatorUnsupported, match="outputs="):
        imported(module, examples)


@pytest.mark.parametrize(
    ("estimator", "why"),
    [
        (SVC(kernel="linear"), "An SVC cannot be imported. Amend supports only the squared hinge loss"),
        (LinearSVC(loss="hinge"), "loss='hinge'"),
        (LinearSVC(intercept_scaling=10.0), "intercept_scaling"),
        (
            LinearSVC(multi_class="crammer_singer"),
            "multi_class='crammer_singer' cannot be imported, because its objective differs",
        ),
        (HuberRegressor(), "also fits a scale"),
        (KNeighborsClassifier(), "A KNeighborsClassifier cannot be imported. It needs all of its rows"),
        (make_pipeline(StandardScaler(), Lasso()), "no l1 penalty; fit a Ridge"),
        (LogisticRegression(fit_intercept=False), "without an intercept"),
        (LogisticRegression(l1_ratio=1.0, solver="saga", max_iter=5000), "l1 penalty"),
        (MLPClassifier((2,), activation="tanh", max_iter=2000, tol=1e-2), "activation 'tanh'"),
        (KernelRidge(), "docs/how-to/kernel-models.md"),
        (make_pipeline(RBFSampler(n_components=4), LogisticRegression()), "docs/how-to/kernel-models.md"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unsupported_estimators_are_rejected_with_a_reason(estimator: Any, why: str) -> None:
    examples = arrays(60, "binary")
    with pytest.raises(EstimatorUnsupported, match=why) as refused:
        imported(clone(estimator).fit(examples["x"], examples["y"]), examples)
    assert refused.value.code == "estimator_unsupported"


def test_a_column_that_the_frame_lacks_is_named() -> None:
    rows = frame(50, "binary").drop(columns="plan")
    estimator = LogisticRegression().fit(rows[["age", "pay"]], rows.y)
    with pytest.raises(EstimatorUnsupported, match="The frame lacks 'pay', which the estimator was fitted with"):
        compose(estimator, describe_inputs(rows.rename(columns={"pay": "zip"}), "y"), None, None)


def test_a_column_with_a_reserved_name_is_named() -> None:
    rows = frame(30, "number")[["age", "pay", "y"]].rename(columns={"pay": "time"})
    with pytest.raises(EstimatorUnsupported, match="'time', which is a reserved name.*Rename"):
        imported(Ridge().fit(rows[["age", "time"]], rows.y), rows)


def test_a_target_that_the_frame_lacks_is_named_with_the_columns() -> None:
    with pytest.raises(EstimatorUnsupported, match="no column 'left'.*'age', 'plan', 'pay', 'y'"):
        describe_inputs(frame(5, "number"), "left")


@pytest.mark.parametrize("last", ["columns", "steps"])
def test_unseen_values_are_refused_in_a_column_with_a_value_named_other(last: str) -> None:
    rows = frame(90, "binary")
    rows["plan"] = rows.plan.replace("trial", "other")
    head = LogisticRegression(**TIGHT)
    numbers = StandardScaler() if last == "columns" else make_pipeline(StandardScaler(), PolynomialFeatures())
    estimator = make_pipeline(columns(numbers), head).fit(rows.drop(columns="y"), rows.y)
    made = imported(estimator, rows)
    described = {column["name"]: column for column in made.input["columns"]}
    assert described["plan"]["other"] is False  # they would be mistaken for it
    found = predicted(adopted(made, rows), made, rows)
    np.testing.assert_allclose(found[:, 0], estimator.predict_proba(rows.drop(columns="y"))[:, 1], atol=1e-6)


def test_rows_that_cannot_be_read_are_refused_with_a_reason() -> None:
    rows = frame(20, "number")
    fitted = Ridge().fit(rows[["age", "pay"]], rows.y)
    for given, estimator, why in (
        (rows.head(0), fitted, "no rows"),
        (pd.concat([rows, rows[["age"]]], axis=1), fitted, "Two columns of the frame are named 'age'"),
        (rows, Ridge, "Ridge is a class. Pass a fitted estimator"),
    ):
        with pytest.raises((EstimatorUnsupported, FrameInvalid), match=why):
            compose(estimator, describe_inputs(given, "y"), None, None)


def test_columns_that_are_not_used_are_not_sent() -> None:
    examples = frame(60, "binary")
    kept = ColumnTransformer([("age", StandardScaler(), ["age"])], remainder="drop")
    pipeline = make_pipeline(kept, LogisticRegression()).fit(examples.drop(columns="y"), examples.y)
    made = imported(pipeline, examples)
    assert spec_of(made)["input"] == {"kind": "table", "columns": [{"name": "age", "type": "number"}]}
    assert sorted(made.examples.column_names) == ["age", "id", "split", "y"]


def test_a_column_that_is_missing_in_the_first_rows_keeps_its_type() -> None:
    rows = pd.concat([frame(10_000, "binary").assign(plan=None), frame(60, "binary")], ignore_index=True)
    assert str(describe_inputs(rows, "y").table.schema.field("plan").type) in ("string", "large_string")


def test_a_column_named_y_next_to_the_target_is_no_input() -> None:
    rows = frame(60, "binary").rename(columns={"y": "left"}).assign(y=1.0)
    fitted = LogisticRegression().fit(rows[["age", "pay"]], rows.left)
    made = compose(fitted, describe_inputs(rows, "left"), None, None)
    assert made.examples.column("y").to_pylist() == rows.left.tolist()
