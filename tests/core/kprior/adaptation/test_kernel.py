"""Kernel models: near to the kernel they stand for, and adapted, certified and cleared as every GLM is.

`test_exact.py` has their adaptations with full memory; here is what is theirs alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from core.inference.loaded_model import LoadedModel
from core.kprior import (
    AddData,
    ChangeModel,
    ChangeTarget,
    Predictor,
    RemoveData,
    State,
    adapt,
    draw_from,
    refine,
    refine_for_erasure,
    train,
)
from core.kprior.data.schema_conversion import target_conversion
from core.kprior.solvers import Training
from tests.core.kprior.oracles import design_matrix, newton, retrain, sklearn_fit
from tests.core.kprior.problems import EVERYTHING, FAMILIES, LOSSES, distance, examples_of, l2, rows, spec_of, without

MANY = 2000
SMALL: dict[str, Any] = {"kind": "kernel", "kernel": "rbf", "features": 40, "lengthscale": 2.0}
WIDE: dict[str, Any] = {"kind": "kernel", "kernel": "matern", "features": 1024, "lengthscale": 2.0}


def exact_kernel(architecture: dict[str, Any]) -> Any:
    if architecture["kernel"] == "rbf":
        return RBF(architecture["lengthscale"])
    return Matern(architecture["lengthscale"], nu=architecture.get("nu", 1.5))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31 - 1),
    lengthscale=st.floats(0.3, 10),
    kernel=st.sampled_from([{"kernel": "rbf"}, {"kernel": "matern"}, {"kernel": "matern", "nu": 2.5}]),
)
def test_features_are_near_to_the_kernel(seed: int, lengthscale: float, kernel: dict[str, Any]) -> None:
    architecture = {"kind": "kernel", **kernel, "features": MANY, "lengthscale": lengthscale, "seed": seed}
    x = examples_of("number", 30, 3, seed % 100).x
    phi = Predictor(spec_of("number", 3, architecture)).features(x).numpy()
    assert np.all(phi[:, -1] == 1)
    inner = phi[:, :-1] @ phi[:, :-1].T
    assert np.allclose(np.diag(inner), 1, atol=1e-6)
    assert np.abs(inner - exact_kernel(architecture)(x.numpy())).max() <= 6 / np.sqrt(MANY / 2)


@pytest.mark.parametrize("kernel", ["rbf", "matern"])
def test_a_number_is_predicted_as_by_the_exact_gaussian_process(kernel: str) -> None:
    architecture = {"kind": "kernel", "kernel": kernel, "features": MANY, "lengthscale": 1.5}
    delta, data, unseen = 0.5, examples_of("number", 60, 2, 1), examples_of("number", 40, 2, 2)
    spec = spec_of("number", 2, architecture, l2(delta, penalize_bias=True))
    state = refine(*ours(spec, data), data.chunks(60), tolerance=1e-5, rounds=50).state
    found = state.predictor.outputs(state.w, unseen.x)[:, 0].numpy()
    whole = ConstantKernel(1 / delta, "fixed") * (exact_kernel(architecture) + ConstantKernel(1.0, "fixed"))
    exact = GaussianProcessRegressor(whole, alpha=1.0, optimizer=None).fit(data.x.numpy(), data.y[:, 0].numpy())
    truth = exact.predict(unseen.x.numpy())
    assert rms(found - truth) <= 0.1 * truth.std()
    ridge = KernelRidge(alpha=delta, kernel="precomputed")
    gram = exact_kernel(architecture)
    ridge.fit(gram(data.x.numpy()) + 1, data.y[:, 0].numpy())
    assert rms(found - ridge.predict(gram(unseen.x.numpy(), data.x.numpy()) + 1)) <= 0.1 * truth.std()


def test_yes_or_no_is_predicted_as_by_the_exact_kernel() -> None:
    """Kernel logistic regression is one on K^1/2, which spans all that the kernel has to say of these rows."""
    architecture = {"kind": "kernel", "kernel": "rbf", "features": MANY, "lengthscale": 1.5}
    data = examples_of("binary", 80, 2, 1)
    spec = spec_of("binary", 2, architecture, l2(0.5))
    state = refine(*ours(spec, data), data.chunks(80), tolerance=1e-5, rounds=50).state
    found = state.predictor.outputs(state.w, data.x)[:, 0].numpy()
    values, vectors = np.linalg.eigh(exact_kernel(architecture)(data.x.numpy()))
    root = vectors * np.sqrt(values.clip(0))
    exact = LogisticRegression(C=1 / 0.5, tol=1e-10, max_iter=10_000).fit(root, data.y[:, 0].numpy())
    truth = exact.decision_function(root)
    assert rms(found - truth) <= 0.1 * truth.std()


def test_a_support_vector_machine_is_that_of_the_exact_kernel() -> None:
    """With squared hinge, as scikit-learn has it in the primal, on the root of the kernel and a constant."""
    architecture = {"kind": "kernel", "kernel": "rbf", "features": 900, "lengthscale": 1.5}
    data = examples_of("squared_hinge", 80, 2, 1)
    state = ours(spec_of("squared_hinge", 2, architecture, l2(2.0, penalize_bias=True)), data)[0]
    found = state.predictor.outputs(state.w, data.x)[:, 0].numpy()
    values, vectors = np.linalg.eigh(exact_kernel(architecture)(data.x.numpy()) + 1)
    root = vectors * np.sqrt(values.clip(0))
    exact = LinearSVC(loss="squared_hinge", C=1 / 2.0, dual=False, fit_intercept=False, tol=1e-10, max_iter=100_000)
    truth = exact.fit(root, data.y[:, 0].numpy()).decision_function(root)
    assert rms(found - truth) <= 0.1 * truth.std()
    assert ((found > 0) == (truth > 0)).mean() >= 0.95


def rms(error: Any) -> float:
    return float(np.sqrt(np.mean(error**2)))


def ours(spec: dict[str, Any], data: Any) -> tuple[State, Any]:
    trained = train(spec, data.chunks(64), policy=EVERYTHING)  # type: ignore[arg-type]
    return trained.state, trained.memory


# wide ones of other losses have no oracle that is quick enough
@pytest.mark.parametrize(
    ("architecture", "kind"), [*((SMALL, kind) for kind in LOSSES), *((WIDE, kind) for kind in FAMILIES)]
)
def test_the_bound_covers_the_way_to_the_fit_of_the_same_features(architecture: dict[str, Any], kind: str) -> None:
    if kind == "classes" and architecture is WIDE:
        architecture = {**WIDE, "features": 400}  # three outputs each
    data = examples_of(kind, 700, 3, 4)
    gone, new = rows(data, 0, 40), rows(data, 600, 700)
    base = train(spec_of(kind, 3, architecture), rows(data, 0, 600).chunks(200))  # type: ignore[arg-type]
    adapted = adapt(base.state, base.memory, [RemoveData([gone]), AddData([new])])
    retained = without(data, gone)
    found = refine(adapted.state, adapted.memory, retained.chunks(200), tolerance=0.01, rounds=60)
    y = retained.y.numpy()
    truth = retrain(spec_of(kind, 3, architecture), retained)
    w = found.state.w.view(y.shape[1], -1).clone()
    if y.shape[1] > 1:  # a constant in all classes says nothing
        w, truth = w - w.mean(0), (truth.view(w.shape) - truth.view(w.shape).mean(0)).reshape(-1)
    bound = found.certificate.bound
    assert bound is not None
    assert found.certificate.meets(0.01)
    assert float((w.reshape(-1) - truth).norm()) <= bound + 1e-4 * float(truth.norm())


def test_the_bound_covers_rows_whose_features_come_out_otherwise_alone() -> None:
    """Far from zero the last digit of an angle depends on the order in which products are summed."""
    data = examples_of("number", 3000, 20, 0)
    far = replace(data, x=data.x * 1e4, y=data.y.sign())
    spec = spec_of("number", 20, {**SMALL, "features": 64, "lengthscale": 1.0}, l2(10.0, penalize_bias=True))
    base = train(spec, [far])
    predictor = base.state.predictor
    whole, alone = predictor.features(far.x), torch.cat([predictor.features(row[None]) for row in far.x])
    other = torch.nonzero((whole != alone).any(1))[:, 0].tolist()
    if not other:
        pytest.skip("the arithmetic of this machine gives both the same features")
    state, memory = base.state, base.memory
    for i in other:
        made = adapt(state, memory, [RemoveData([far.take(torch.tensor([i]))])])
        state, memory = made.state, made.memory
    keep = torch.ones(len(far), dtype=torch.bool)
    keep[other] = False
    phi, y = whole[keep].numpy(), far.y[keep].double().numpy()
    w = np.linalg.solve(phi.T @ phi + 10 * np.eye(phi.shape[1]), phi.T @ y)[:, 0]
    assert made.certificate is not None
    assert distance(state, torch.from_numpy(w)) <= made.certificate.bound


def test_linear_becomes_a_kernel_and_a_kernel_a_network() -> None:
    data = examples_of("binary", 400, 3, 6)
    base = train(spec_of("binary", 3), data.chunks(100))  # type: ignore[arg-type]
    kernel = adapt(base.state, base.memory, [ChangeModel(SMALL)])  # type: ignore[arg-type]
    assert kernel.state.spec["architecture"] == SMALL
    found = refine(kernel.state, kernel.memory, data.chunks(100), tolerance=0.001, rounds=20)
    assert found.certificate.meets(0.001)
    truth = newton("binary", design_matrix(data.x, SMALL), data.y.numpy(), np.r_[np.ones(40), 0])
    assert distance(found.state, torch.from_numpy(truth.astype(float))) <= 0.001 * float(found.state.w.norm())
    mlp: Any = {"kind": "mlp", "hidden": [8]}
    network = adapt(found.state, found.memory, [ChangeModel(mlp)], training=Training(budget=500), draw=draw_from(data))
    assert network.state.spec["architecture"] == mlp
    assert not network.state.predictor.linear


def test_a_state_has_its_features_from_the_seed() -> None:
    data = examples_of("number", 50, 2, 1)
    spec = spec_of("number", 2, {**SMALL, "seed": 7})
    state = train(spec, [data]).state  # type: ignore[arg-type]
    again = State.from_bytes(state.to_bytes())
    assert torch.equal(again.predictor.features(data.x), state.predictor.features(data.x))
    other = Predictor({**spec, "architecture": {**SMALL, "seed": 8}})  # type: ignore[typeddict-item]
    assert not torch.allclose(other.features(data.x), state.predictor.features(data.x))
    single = LoadedModel.from_state(again).predict_means(data.x[:1].numpy())
    assert np.allclose(single, state.predictor.outputs(state.w, data.x)[:1].numpy(), atol=1e-12)


def test_a_kernel_model_learns_an_added_class() -> None:
    data = examples_of("binary", 300, 3, 2)
    base = train(spec_of("binary", 3, SMALL), data.chunks(100), policy=EVERYTHING)  # type: ignore[arg-type]
    target: Any = {"kind": "classes", "values": [0, 1, 2]}
    task = ChangeTarget(target, target_conversion({"kind": "binary"}, target) or ())
    more = examples_of("classes", 60, 3, 3, first_key=1000)
    adapted = adapt(base.state, base.memory, [task, AddData([more])], policy=EVERYTHING)
    y = np.zeros((300, 3))
    y[np.arange(300), data.y[:, 0].long().numpy()] = 1
    every, labels = torch.cat([data.x, more.x]), np.concatenate([y, more.y.numpy()])
    truth = torch.from_numpy(sklearn_fit("classes", design_matrix(every, SMALL), labels, 1.0, False)).view(3, -1)
    w = adapted.state.w.view(3, -1)
    assert float(((w - w.mean(0)) - (truth - truth.mean(0))).norm()) <= 1e-4 * float(truth.norm())


def test_kernel_weights_are_the_same_whoever_was_erased() -> None:
    left = examples_of("binary", 300, 3, 5)
    weights = []
    for seed in (8, 9):
        person = examples_of("binary", 3, 3, seed, first_key=900)
        base = train(spec_of("binary", 3, SMALL), [left, person])  # type: ignore[arg-type]
        adapted = adapt(base.state, base.memory, [RemoveData([person])])
        cleared = refine_for_erasure(adapted.state, adapted.memory, [left], tolerance=0.01)
        assert cleared is not None
        weights.append(cleared.state.w)
    assert torch.equal(*weights)
