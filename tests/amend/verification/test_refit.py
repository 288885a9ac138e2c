"""`--refit`: the minimum of the stated objective, compared with models that other libraries fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from amend.verification import Check, Result, Verification, refit, retained_rows, verify_bundle
from tests.amend.verification import models
from tests.amend.verification.builder import Bundle, Log, Model, make_bundle


def verify(bundle: Bundle, folder: Path) -> Verification:
    key = folder / "key.pem"
    key.write_text(Log().signer.pem)
    return verify_bundle(bundle.write(folder / "bundle.zip"), key, refit=True)


def distance_check(found: Verification) -> Check:
    return next(check for check in found.checks if check.what.startswith("Distance"))


@pytest.mark.parametrize("fit", models.FITTED)
def test_models_fitted_elsewhere_are_within_the_certified_distance(fit: Callable[[], Model], tmp_path: Path) -> None:
    found = verify(make_bundle(fit()), tmp_path)
    assert found.passed, found.checks
    assert not any("operator stands by" in sentence for sentence in found.unproven)


@pytest.mark.parametrize("fit", models.FITTED)
def test_weights_outside_the_certified_distance_fail(fit: Callable[[], Model], tmp_path: Path) -> None:
    model = fit()
    model.weights = model.weights.copy()
    model.weights[0, 0] += 2 * model.bound
    found = verify(make_bundle(model), tmp_path)
    assert distance_check(found).result is Result.FAILED


def test_a_wide_softmax_with_free_biases_is_refitted_without_its_hessian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "MAX_DENSE", 10)
    found = verify(make_bundle(models.categorical()), tmp_path)
    assert found.passed, found.checks


@pytest.mark.parametrize("fit", [models.squared_hinge, models.perturbed, models.sparse, models.poisson])
def test_wide_models_of_other_families_are_refitted(
    fit: Callable[[], Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit, "MAX_DENSE", 1)
    found = verify(make_bundle(fit()), tmp_path)
    assert found.passed, found.checks


def test_rows_of_many_columns_are_hashed_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_rows, "DENSE_NUMBERS", 3 * models.COLUMNS)
    assert verify(make_bundle(models.sparse()), tmp_path).passed


def test_a_refit_that_did_not_converge_establishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "LBFGS_STEPS", 1)
    monkeypatch.setattr(refit, "NEWTON_STEPS", 0)
    for fit in (models.bernoulli, models.squared_hinge):
        found = verify(make_bundle(fit()), tmp_path)
        assert distance_check(found).result is Result.NOT_ESTABLISHED


def test_an_undetermined_minimum_establishes_nothing(tmp_path: Path) -> None:
    model = models.gaussian()
    model.features = np.hstack([model.features[:, :3], model.features[:, :1], model.features[:, 4:]])
    model.delta = np.zeros_like(model.delta)
    found = verify(make_bundle(model), tmp_path)
    assert distance_check(found).result is Result.NOT_ESTABLISHED


@pytest.mark.parametrize("scale", [1e-3, 1e-5])
def test_the_error_of_a_refit_covers_its_distance_to_the_minimum(scale: float) -> None:
    """Weights at a known distance from the minimum: the bound on the error is never below it."""
    model = models.bernoulli()
    objective = refit.Objective(
        refit_family(model), model.features, model.targets[:, None], model.sample_weights, model.delta, *zeros(model)
    )
    best = refit.refit(objective).weights
    for seed in range(20):
        step = np.random.default_rng(seed).normal(size=best.shape)
        w = best + scale * step / np.linalg.norm(step)
        gradient = np.linalg.norm(objective.evaluate(w)[1])
        assert refit.bound_error(objective, w, gradient) >= scale * (1 - 1e-6)


def refit_family(model: Model) -> object:
    from amend.verification.families import FAMILIES

    return FAMILIES[model.family]()


def zeros(model: Model) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros_like(model.weights), np.zeros_like(model.weights)


def test_a_larger_softmax_is_refitted_to_rounding_error(tmp_path: Path) -> None:
    """More weights than a Hessian is stored for: 5 classes and 651 features."""
    stream = np.random.default_rng(0)
    x = stream.normal(size=(600, 650)) / 10
    y = stream.integers(0, 5, 600).astype(float)
    fit = LogisticRegression(C=0.1, tol=1e-10, solver="newton-cg", max_iter=1000).fit(x, y)
    weights = models.stack(fit.coef_, fit.intercept_ - fit.intercept_.mean())
    delta = np.hstack([np.full((5, 650), 10.0), np.zeros((5, 1))])
    model = Model(weights, delta, models.with_constant(x), y, np.ones(600), "categorical", bound=1e-4)
    found = verify(make_bundle(model), tmp_path)
    assert found.passed, found.checks
