"""Tree ensembles: LightGBM's splits, and a GLM on their leaves that is adapted like any other."""

from functools import cache

import lightgbm
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from core.kprior import AddData, Examples, MemoryPolicy, RemoveData, State, adapt, refine, train
from core.kprior.training.training import Predecessor
from core.kprior.training.tree_boosting import choose_delta

TABLE = {
    "kind": "table",
    "columns": [
        {"name": "age", "type": "number"},
        {"name": "spend", "type": "number"},
        {"name": "plan", "type": "category", "values": list("abcdefgh"), "other": True},
        {"name": "paid", "type": "boolean"},
    ],
}
TARGETS = {
    "binary": {"kind": "binary"},
    "classes": {"kind": "classes", "values": ["x", "y", "z"]},
    "number": {"kind": "number"},
    "count": {"kind": "count"},
}
TREES, LEAVES = 12, 8


def make_rows(target: str, n: int = 1500, seed: int = 0, first: int = 0) -> Examples:
    r = np.random.default_rng(seed)
    x = np.stack([r.normal(40, 10, n), r.lognormal(2, 1, n), r.integers(-1, 8, n), r.integers(0, 2, n)], 1)
    f = np.sin(x[:, 0] / 5) + 0.4 * np.isin(x[:, 2], [1, 4, 5]) * np.log(x[:, 1]) - 0.5 * x[:, 3]
    x[r.random(n) < 0.1, 0] = np.nan
    x[r.random(n) < 0.1, 2] = np.nan
    y = {
        "binary": (r.random(n) < 1 / (1 + np.exp(-f)))[:, None],
        "classes": np.eye(3)[np.digitize(f + r.normal(0, 0.5, n), [-0.3, 0.6])],
        "number": (f + r.normal(0, 0.3, n))[:, None],
        "count": r.poisson(np.exp(f))[:, None],
    }[target]
    return Examples(
        torch.arange(first, first + n), torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(float))
    )


def spec_of(target: str, delta: float | str = 30.0) -> dict:
    return {
        "input": TABLE,
        "target": TARGETS[target],
        "architecture": {"kind": "trees", "trees": TREES, "leaves": LEAVES},
        "regularizer": {"kind": "l2", "delta": delta, "penalize_bias": False},
    }


@cache
def trained(target: str):
    return train(spec_of(target), make_rows(target).chunks(400), policy=MemoryPolicy(0.05))


@pytest.mark.parametrize("target", TARGETS)
def test_leaves_are_those_of_lightgbm(target: str) -> None:
    rows, unseen = make_rows(target), make_rows(target, 500, seed=9)
    x = rows.x.double().numpy().copy()
    x[:, 2] = np.where(x[:, 2] < 0, np.nan, x[:, 2])
    options = {"num_leaves": LEAVES, "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1}
    options |= {
        "objective": {"classes": "multiclass", "number": "regression", "count": "poisson"}.get(target, "binary")
    }
    options |= {"num_class": 3} if target == "classes" else {}
    y = rows.y.argmax(1) if target == "classes" else rows.y[:, 0]
    data = lightgbm.Dataset(x, y.numpy(), categorical_feature=[2])
    booster = lightgbm.train(options, data, TREES // 3 if target == "classes" else TREES)
    given = unseen.x.double().numpy().copy()
    given[:5] = np.nan
    leaves = booster.predict(given, pred_leaf=True)  # an unseen category is -1, which LightGBM treats as missing
    ours = trained(target).state.predictor.encode(torch.from_numpy(given)).numpy() - np.arange(TREES) * LEAVES
    assert np.isnan(unseen.x.numpy()).any()
    assert (leaves == ours).all()


@pytest.mark.parametrize("target", TARGETS)
def test_head_is_the_optimum_that_scikit_learn_finds(target: str) -> None:
    rows, state = make_rows(target), trained(target).state
    phi = state.predictor.features(rows.x)[:, :-1].numpy()
    delta, y = 30.0, rows.y.numpy()
    if target in ("binary", "classes"):
        label = y.argmax(1) if target == "classes" else y[:, 0]
        model = LogisticRegression(C=1 / delta, tol=1e-10, max_iter=5000).fit(phi, label)
        means = model.predict_proba(phi) if target == "classes" else model.predict_proba(phi)[:, 1:]
    elif target == "number":
        means = Ridge(alpha=delta).fit(phi, y[:, 0]).predict(phi)[:, None]
    else:
        means = PoissonRegressor(alpha=delta / len(y), tol=1e-10, max_iter=5000).fit(phi, y[:, 0]).predict(phi)[:, None]
    ours = state.predictor.family.mean(state.predictor.outputs(state.w, rows.x)).numpy()
    assert np.abs(ours - means).max() < 2e-3


@pytest.mark.parametrize("target", TARGETS)
def test_bound_covers_the_distance_to_a_refit_on_the_same_splits(target: str) -> None:
    rows, new, base = make_rows(target), make_rows(target, 40, seed=5, first=5000), trained(target)
    left = rows.take(rows.key >= 25)
    retained = [left, new]
    tasks = [RemoveData([rows.take(rows.key < 25)]), AddData([new])]
    adapted = adapt(base.state, base.memory, tasks, policy=MemoryPolicy(0.05))
    found = refine(adapted.state, adapted.memory, retained, tolerance=1e-2)
    refit = train(spec_of(target), retained, predecessor=Predecessor(base.state))
    best = refine(refit.state, refit.memory, retained, tolerance=1e-9, rounds=8).state.w
    assert found.certificate.meets(1e-2)
    assert float((found.state.w - best).norm()) <= found.certificate.bound + 1e-8
    if adapted.certificate is not None:
        assert float((adapted.state.w - best).norm()) <= adapted.certificate.bound + 1e-8
    assert float((found.state.w - best).norm()) < 0.2 * float((base.state.w - best).norm())


def test_state_contains_the_splits_and_is_deterministic() -> None:
    state, rows = trained("binary").state, make_rows("binary")
    again = State.from_bytes(state.to_bytes())
    assert torch.equal(again.predictor.outputs(again.w, rows.x), state.predictor.outputs(state.w, rows.x))
    repeated = train(spec_of("binary"), rows.chunks(400), policy=MemoryPolicy(0.05))
    assert repeated.state.to_bytes() == state.to_bytes()


def test_penalty_is_chosen_on_withheld_rows() -> None:
    rows = make_rows("binary", 3000)
    spec = spec_of("binary", "auto")
    spec["architecture"] = {"kind": "trees", "trees": 30, "leaves": 16}
    state = train(spec, [rows]).state
    chosen = float(state.predictor.encoder.delta)
    assert float(state.regularizer.delta[0]) == chosen == choose_delta(state.predictor, spec, rows, training_of())
    fresh = make_rows("binary", 4000, seed=3)

    def loss(delta: float) -> float:
        made = train(spec | {"regularizer": {"kind": "l2", "delta": delta}}, [rows]).state
        return float(made.predictor.family.loss(fresh.y, made.predictor.outputs(made.w, fresh.x)).sum())

    assert loss(chosen) < loss(1.0)


def training_of():
    from core.kprior import Training

    return Training()


def test_too_few_rows_for_a_split_give_the_mean() -> None:
    rows = make_rows("number", 8)
    state = train(spec_of("number", "auto"), [rows]).state
    f = state.predictor.outputs(state.w, rows.x)
    assert torch.allclose(f, rows.y.mean().expand_as(f), atol=1e-6)
