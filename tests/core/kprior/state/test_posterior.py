"""How sure a model is, against closed forms, scikit-learn, and a long walk through the true posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, logsumexp, softmax
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import BayesianRidge
from torch import nn

from core.inference.loaded_model import LoadedModel
from core.kprior import AddData, ChangeRegularizer, Examples, RemoveData, State, adapt, certify, draw_from, train
from core.kprior.curvature import Blocks
from core.kprior.model.uncertainty import Z_SCORE, Uncertainty, assess_classes, assess_logits
from core.kprior.solvers import Training
from core.kprior.state.posterior import LatePosterior, NoPosterior, laplace, sampling_bias
from tests.core.kprior.oracles import deltas_of, derivatives, design_matrix, walk
from tests.core.kprior.problems import (
    EVERYTHING,
    FAMILIES,
    KERNEL,
    LINEAR,
    examples_of,
    l2,
    outputs_of,
    rows,
    spec_of,
    with_weights,
    without,
)

WIDE: dict[str, Any] = {"kind": "kernel", "kernel": "rbf", "features": 1024, "lengthscale": 2.0}


def assess(state: State, x: torch.Tensor) -> Uncertainty:
    predictor = state.predictor
    f, phi = predictor.outputs(state.w, x).numpy(), predictor.features(x).numpy()
    return laplace(state).assess(predictor.family.name, f, phi)


def exact_covariance(spec: dict[str, Any], data: Examples, w: np.ndarray, unseen: torch.Tensor) -> np.ndarray:
    """Of the outputs for unseen inputs: the Hessian of the objective at w by other code, (n, K, K)."""
    phi, y = design_matrix(data.x, spec["architecture"]), data.y.double().numpy()
    K, D = y.shape[1], phi.shape[1]
    weight = None if data.weight is None else data.weight.numpy()
    _, H = derivatives(spec["target"]["kind"], phi, y, deltas_of(spec, K, D), w, weight=weight)
    inverse = np.linalg.pinv(H.astype(float)).reshape(K, D, K, D)
    new = design_matrix(unseen, spec["architecture"])
    return np.einsum("nd,kdle,ne->nkl", new, inverse, new)


@settings(max_examples=30)
@given(
    kind=st.sampled_from(FAMILIES),
    architecture=st.sampled_from([LINEAR, KERNEL]),
    seed=st.integers(0, 1000),
    weighted=st.booleans(),
)
def test_outputs_vary_as_the_inverse_of_the_curvature(
    kind: str, architecture: dict[str, Any], seed: int, weighted: bool
) -> None:
    """After examples came and went and the penalty changed, without a pass: the sums are those of what is left."""
    data = examples_of(kind, 260, 3, seed)
    data = with_weights(data, seed) if weighted else data
    spec = spec_of(kind, 3, architecture, l2(0.5, penalize_bias=True))
    base = train({**spec, "regularizer": l2(1.0, penalize_bias=True)}, rows(data, 0, 230).chunks(100))  # type: ignore[arg-type]
    gone = rows(data, 0, 20)
    tasks = [RemoveData([gone]), AddData([rows(data, 230, 260)]), ChangeRegularizer(spec["regularizer"])]
    state = adapt(base.state, base.memory, tasks).state  # type: ignore[arg-type]
    unseen, left = examples_of(kind, 20, 3, seed + 1).x, without(data, gone)
    posterior = laplace(state)
    found = posterior.covariance(state.predictor.features(unseen).numpy())
    truth = exact_covariance(spec, left, state.anchor.w.numpy(), unseen)
    if kind == "number":
        phi, w = design_matrix(left.x, architecture), state.w.numpy()
        v = np.ones(len(phi)) if left.weight is None else left.weight.numpy()
        G = (phi * v[:, None]).T @ phi
        decided = np.trace(np.linalg.solve(G + 0.5 * np.eye(len(G)), G))
        noise = (v * (left.y[:, 0].numpy() - phi @ w) ** 2).sum() / (v.sum() - decided)
        assert posterior.noise == pytest.approx(noise, rel=1e-4)
        truth = truth * noise
    assert np.allclose(found, truth, rtol=1e-3, atol=1e-5 * np.abs(truth).max())


def test_uncertainty_of_numbers_equals_bayesian_ridge() -> None:
    data, unseen = examples_of("number", 200, 3, 1), examples_of("number", 30, 3, 2)
    exact = BayesianRidge(fit_intercept=False, max_iter=1000, tol=1e-10)
    exact.fit(design_matrix(data.x, LINEAR), data.y[:, 0].numpy())
    spec = spec_of("number", 3, LINEAR, l2(exact.lambda_ / exact.alpha_, penalize_bias=True))
    state = train(spec, [data]).state  # type: ignore[arg-type]
    found, width = assess(state, unseen.x), student.ppf(0.975, 196)
    mean, std = exact.predict(design_matrix(unseen.x, LINEAR), return_std=True)
    assert np.allclose(found.std[:, 0], std, rtol=0.01)
    ends = np.hstack([found.low, found.high])
    assert np.allclose(ends, np.stack([mean - width * std, mean + width * std], 1), rtol=0.01, atol=0.01)


@settings(max_examples=20)
@given(n=st.integers(4, 12), seed=st.integers(0, 1000))
def test_of_few_rows_the_interval_of_a_number_is_that_of_least_squares(n: int, seed: int) -> None:
    """The textbook's, which holds 95 % whatever n is: by Student's t."""
    rng = np.random.default_rng(seed)
    data = Examples(
        torch.arange(n), torch.from_numpy(rng.standard_normal((n, 2))), torch.from_numpy(rng.random((n, 1)))
    )
    phi, y = design_matrix(data.x, LINEAR), data.y[:, 0].numpy()
    found = assess(train(spec_of("number", 2, LINEAR, l2(1e-9)), [data]).state, data.x)  # type: ignore[arg-type]
    residuals = y - phi @ np.linalg.lstsq(phi, y)[0]
    leverage = np.einsum("nd,de,ne->n", phi, np.linalg.inv(phi.T @ phi), phi)
    std = np.sqrt(residuals @ residuals / (n - 3) * (1 + leverage))
    assert np.allclose((found.high - found.low)[:, 0], 2 * student.ppf(0.975, n - 3) * std, rtol=1e-3)
    assert np.allclose(found.std[:, 0], std, rtol=1e-3)


def test_no_interval_is_given_for_numbers_of_unknown_noise() -> None:
    data = examples_of("number", 200, 2, 1)
    spec = spec_of("number", 2, LINEAR, l2(1e-3))
    few = train(spec, [rows(data, 0, 3)]).state  # type: ignore[arg-type]
    with pytest.raises(NoPosterior, match="too few examples per weight"):
        laplace(few)
    base = train(spec, [data])  # type: ignore[arg-type]
    for size, told in ((1e3, True), (1e9, False)):
        outlier = Examples(torch.tensor([999]), torch.ones(1, 2).double(), torch.tensor([[size]]).double())
        came = adapt(base.state, base.memory, [AddData([outlier])])
        state = State.from_bytes(adapt(came.state, came.memory, [RemoveData([outlier])]).state.to_bytes())
        if told:
            assert laplace(state).noise == pytest.approx(laplace(base.state).noise, rel=1e-6)
        else:
            with pytest.raises(NoPosterior, match="lost in rounding"):
                laplace(state)


def test_a_kernel_is_as_unsure_as_the_exact_gaussian_process() -> None:
    """Where there are examples and where there are none; both with the noise that was found."""
    data = examples_of("number", 150, 1, 3)
    spec = spec_of("number", 1, {**KERNEL, "features": 600}, l2(0.5, penalize_bias=True))
    state = train(spec, [data]).state  # type: ignore[arg-type]
    unseen = torch.linspace(-9, 9, 25, dtype=torch.float64)[:, None]
    found, noise = assess(state, unseen), laplace(state).noise
    kernel = ConstantKernel(noise / 0.5) * (RBF(2.0) + ConstantKernel(1.0))
    exact = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(data.x.numpy(), data.y[:, 0].numpy())
    std = np.hypot(exact.predict(unseen.numpy(), return_std=True)[1], np.sqrt(noise))
    assert np.allclose(found.std[:, 0], std, rtol=0.05)
    assert found.std[0] > 1.2 * found.std[12]


def test_yes_or_no_is_as_sure_as_a_long_walk_through_the_posterior() -> None:
    data, unseen = examples_of("binary", 150, 3, 4), examples_of("binary", 25, 3, 5).x
    spec = spec_of("binary", 3, LINEAR, l2(1.0, penalize_bias=True))
    state = train(spec, [data]).state  # type: ignore[arg-type]
    phi, y = design_matrix(data.x, LINEAR), data.y[:, 0].numpy()
    p = expit(phi @ state.w.numpy())
    H = (phi * (p * (1 - p))[:, None]).T @ phi + np.eye(4)
    walked = walk(phi, y, 1.0, state.w.numpy(), np.linalg.cholesky(np.linalg.inv(H)), 40_000)
    drawn = expit(walked @ design_matrix(unseen, LINEAR).T)
    found = assess(state, unseen)
    assert np.allclose(found.std[:, 0], drawn.std(0), rtol=0.15, atol=0.005)
    ends = np.quantile(drawn, [0.025, 0.975], axis=0)
    assert np.abs(found.low[:, 0] - ends[0]).max() <= 0.05
    assert np.abs(found.high[:, 0] - ends[1]).max() <= 0.05


def test_classes_and_counts_are_as_sure_as_draws_of_their_weights() -> None:
    for kind, h in (("classes", lambda f: softmax(f, 2)), ("count", np.exp)):
        data, unseen = examples_of(kind, 300, 3, 6), examples_of(kind, 20, 3, 7).x
        state = train(spec_of(kind, 3, LINEAR, l2(1.0, penalize_bias=True)), [data]).state  # type: ignore[arg-type]
        root = laplace(state).root.astype(float)
        drawn = state.w.numpy() + np.random.default_rng(0).standard_normal((20_000, len(root))) @ root
        f = np.einsum("nd,skd->nsk", design_matrix(unseen, LINEAR), drawn.reshape(20_000, outputs_of(kind), -1))
        means, found = h(f), assess(state, unseen)
        assert np.allclose(found.std, means.std(1), rtol=0.1, atol=0.003)
        assert np.allclose(found.low, np.quantile(means, 0.025, 1), rtol=0.05, atol=0.02)
        assert np.allclose(found.high, np.quantile(means, 0.975, 1), rtol=0.05, atol=0.02)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), far=st.sampled_from([0.0, 1.0, 5.0, 30.0, 500.0]))
def test_two_classes_are_as_sure_as_yes_or_no(seed: int, far: float) -> None:
    """However near to 0 or 1: the same problem, with half the penalty on the difference of two weights."""
    data = examples_of("binary", 40, 2, seed)
    unseen = far * examples_of("binary", 20, 2, seed + 1).x
    one = train(spec_of("binary", 2, LINEAR, l2(0.5, penalize_bias=True)), [data]).state  # type: ignore[arg-type]
    both = Examples(data.key, data.x, torch.cat([1 - data.y, data.y], 1))
    spec = {
        **spec_of("classes", 2, LINEAR, l2(1.0, penalize_bias=True)),
        "target": {"kind": "classes", "values": [0, 1]},
    }
    two = train(spec, [both]).state  # type: ignore[arg-type]
    for ours, theirs in zip(assess(two, unseen), assess(one, unseen), strict=True):
        assert np.allclose(ours[:, [1]], theirs, rtol=1e-3, atol=1e-12)


def test_intervals_of_almost_certain_classes_are_exact() -> None:
    """Against the slope of the log-odds in many digits, and the mean over a Gaussian by other code."""
    f = np.array([[0.0, -24.0, -25.0], [900.0, 0.0, -1.0], [0.0, -40.0, 0.0], [1.0, 2.0, 3.0]])
    A = np.random.default_rng(0).standard_normal((4, 3, 3))
    covariance = A @ A.transpose(0, 2, 1) + 1e8  # what they have in common means nothing
    found = assess_classes(f, covariance)
    for i in range(4):
        for k in range(3):
            others = np.where(np.arange(3) == k, -np.inf, f[i])
            odds, slope = f[i, k] - logsumexp(others), np.eye(3)[k] - softmax(others)
            spread = np.linalg.norm(slope @ A[i])
            assert found.low[i, k] == pytest.approx(expit(odds - Z_SCORE * spread), rel=1e-4, abs=0)
            assert 1 - found.high[i, k] == pytest.approx(expit(-odds - Z_SCORE * spread), rel=1e-4, abs=1e-15)


@pytest.mark.parametrize(("f", "spread"), [(0, 0.1), (3, 1), (0, 5), (-10, 10), (20, 20), (-8, 3)])
def test_a_probability_varies_as_its_log_odds_make_it(f: float, spread: float) -> None:
    x = np.linspace(-9, 9, 20_001)
    share = norm.pdf(x) / norm.pdf(x).sum()
    p = expit(f + spread * x)
    truth = np.sqrt((p - p @ share) ** 2 @ share)
    assert assess_logits(np.array([[f]]), np.array([[spread]])).std.item() == pytest.approx(truth, rel=0.01)


def test_uncertainty_of_a_wide_model_is_close_to_that_of_its_full_curvature() -> None:
    data, unseen = examples_of("binary", 6_000, 4, 8), examples_of("binary", 100, 4, 9).x
    state = train(spec_of("binary", 4, WIDE, l2(1.0, penalize_bias=True)), data.chunks(2_000)).state  # type: ignore[arg-type]
    phi, new = state.predictor.features(data.x), state.predictor.features(unseen)
    p = torch.sigmoid(phi @ state.w)
    H = (phi * (p * (1 - p))[:, None]).T @ phi + torch.eye(len(state.w))
    truth = (new * torch.linalg.solve(H, new.T).T).sum(1).sqrt()
    ratio = np.sqrt(laplace(state).covariance(new.numpy())[:, 0, 0]) / truth.numpy()
    assert float(ratio.mean()) == pytest.approx(1, abs=0.03)
    assert np.abs(ratio - 1).max() <= 0.2


def test_an_estimate_is_worth_as_many_rows_as_count_alike() -> None:
    drawn, weight = torch.tensor([[7, 7, 7, 8, 9, -1]]), torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    blocks = Blocks(torch.zeros(1, 1, 1), drawn, weight, torch.tensor(10.0))
    assert sampling_bias(blocks, 1.0, 10) == pytest.approx(1 - 0.7 * 1.0 / (25 / 11))
    assert sampling_bias(blocks, 3.0, 3) == 1  # all of them were drawn
    with pytest.raises(NoPosterior, match="a few have most of the weight"):
        sampling_bias(blocks, 3.0, 10)


def test_uncertainty_is_unavailable_after_a_long_move_without_a_pass() -> None:
    """Those that a model is wrong about go, and it becomes sure: its curvature is not that of its anchor any more."""
    data = examples_of("binary", 300, 2, 1)
    spec = spec_of("binary", 2, LINEAR, l2(1.0))
    base = train(spec, [data], policy=EVERYTHING)  # type: ignore[arg-type]
    f = base.state.predictor.outputs(base.state.w, data.x)[:, 0]
    order = (f * (2 * data.y[:, 0] - 1)).argsort()
    moved = adapt(base.state, base.memory, [RemoveData([data.take(order[:60])])], policy=EVERYTHING)
    with pytest.raises(NoPosterior, match="moved far"):
        laplace(moved.state)
    left = data.take(order[60:])
    read, exact = certify(moved.state, moved.memory, [left]).state, train(spec, [left]).state  # type: ignore[arg-type]
    assert np.allclose(assess(read, data.x).std, assess(exact, data.x).std, rtol=0.02)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_network_is_as_sure_as_a_linear_model_on_what_its_last_layer_reads(kind: str) -> None:
    data, unseen = examples_of(kind, 300, 3, 1), examples_of(kind, 20, 3, 2).x
    spec = spec_of(kind, 3, {"kind": "mlp", "hidden": [6, 5]}, l2(0.5, penalize_bias=kind != "classes"))
    trained = train(spec, data.chunks(70), training=Training(max_epochs=20))  # type: ignore[arg-type]
    again = State.from_bytes(trained.state.to_bytes())
    removed = adapt(
        trained.state, trained.memory, [RemoveData([rows(data, 0, 60)])], draw=draw_from(rows(data, 60, 300))
    )
    for state, left in ((again, data), (removed.state, rows(data, 60, 300))):
        model = LoadedModel.from_state(state, posterior=LatePosterior(state))
        mean, found = model.assess(unseen.float().numpy())
        assert np.allclose(mean, model.predict_means(unseen.float().numpy()), rtol=1e-5, atol=1e-6)
        layers = [layer for layer in state.predictor.body if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]

        def read(x: torch.Tensor, layers: list[nn.Linear] = layers) -> Examples:
            with torch.no_grad():
                z = torch.relu(layers[1](torch.relu(layers[0](x.float())))).double()
            return Examples(torch.arange(len(z)), z, torch.zeros(len(z), 1))

        last = {**spec, "architecture": LINEAR}
        hidden = Examples(left.key, read(left.x).x, left.y)
        w = torch.cat([layers[2].weight, layers[2].bias[:, None]], 1).detach().double().reshape(-1).numpy()
        covariance = exact_covariance(last, hidden, w, read(unseen).x)
        new, K = design_matrix(read(unseen).x, LINEAR), outputs_of(kind)
        f = torch.from_numpy(new @ w.reshape(K, -1).T)
        if kind == "number":
            phi = design_matrix(hidden.x, LINEAR)
            decided = np.trace(np.linalg.solve(phi.T @ phi + 0.5 * np.eye(6), phi.T @ phi))
            noise = ((left.y[:, 0].numpy() - phi @ w) ** 2).sum() / (len(left) - decided)
            assert laplace(state).noise == pytest.approx(noise, rel=1e-3)
            truth = np.sqrt(covariance[:, :, 0] * noise + noise)
        elif kind == "classes":
            p = softmax(f.numpy(), 1)
            J = np.einsum("nk,kl->nkl", p, np.eye(K)) - np.einsum("nk,nl->nkl", p, p)
            spread = np.sqrt(np.einsum("nkl,nlm,nkm->nk", J, covariance, J)) / (p * (1 - p))
            assert np.allclose(found.low, expit(logit(p) - Z_SCORE * spread), rtol=0.01, atol=1e-4)
            continue
        else:
            low = state.predictor.family.mean(f - Z_SCORE * torch.from_numpy(covariance[:, :, 0]).sqrt())
            assert np.allclose(found.low, low, rtol=0.01, atol=1e-4)
            continue
        assert np.allclose(found.std, truth, rtol=0.01, atol=1e-3)


def test_unavailable_uncertainty_has_an_explanation() -> None:
    data = examples_of("binary", 60, 3, 1)
    mlp = spec_of("binary", 3, {"kind": "mlp", "hidden": [3000]})
    network = train(mlp, [data], training=Training(max_epochs=1)).state  # type: ignore[arg-type]
    wide = train(spec_of("classes", 3, {**WIDE, "features": 400}), [examples_of("classes", 60, 3, 1)]).state  # type: ignore[arg-type]
    machine = train(spec_of("squared_hinge", 3), [examples_of("squared_hinge", 60, 3)]).state  # type: ignore[arg-type]
    for state, words in ((network, "last layer"), (wide, "so many weights"), (machine, "not a likelihood")):
        with pytest.raises(NoPosterior, match=words):
            LatePosterior(state)()
    few = Examples(torch.arange(2), torch.zeros(2, 3).double(), torch.zeros(2, 1).double())
    free = train(spec_of("number", 3, LINEAR, l2(1e-9)), [few]).state  # type: ignore[arg-type]
    found = LatePosterior(free)
    assert found() is found()
