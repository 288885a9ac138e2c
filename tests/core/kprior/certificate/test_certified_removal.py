"""Certified removal: the perturbed objective is what is trained, adapted and certified."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from core.kprior import AddData, CertifiedRemoval, ChangeRegularizer, Examples, RemoveData, State, adapt, refine, train

SPEC = {
    "input": {"kind": "vector", "dim": 3},
    "target": {"kind": "binary"},
    "architecture": {"kind": "linear", "degree": 1},
    "regularizer": {"kind": "l2", "delta": 2.0, "penalize_bias": True},
}
REMOVAL = CertifiedRemoval(epsilon=1.0, delta=1e-4, sigma=3.0)


def examples(n: int = 400) -> Examples:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    return Examples(torch.arange(n), torch.from_numpy(x), torch.from_numpy(y)[:, None])


def optimum(data: Examples, delta: float, b: np.ndarray) -> np.ndarray:
    """The minimum of sum log(1 + e^f) - y f + delta/2 |w|^2 + b'w, by SciPy."""
    phi = np.hstack([data.x.numpy().astype(float), np.ones((len(data), 1))])
    y = data.y.numpy()[:, 0]

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        f = phi @ w
        value = np.logaddexp(0, f).sum() - y @ f + delta / 2 * w @ w + b @ w
        return value, phi.T @ (1 / (1 + np.exp(-f)) - y) + delta * w + b

    return np.asarray(minimize(objective, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-10}).x)


def test_training_adapting_and_refining_solve_the_perturbed_problem() -> None:
    data = examples()
    past, new = data.take(torch.arange(300)), data.take(torch.arange(300, 400))
    base = train(SPEC, [past], certified_removal=REMOVAL)
    b = base.state.regularizer.linear
    assert b is not None
    np.testing.assert_allclose(base.state.w.numpy(), optimum(past, 2.0, b.numpy()), atol=1e-6)
    changes = [RemoveData([past.take(torch.arange(40))]), AddData([new])]
    changes.append(ChangeRegularizer({"kind": "l2", "delta": 4.0, "penalize_bias": True}))
    adapted = adapt(base.state, base.memory, changes)
    kept = data.take(torch.arange(40, 400))
    refined = refine(adapted.state, adapted.memory, [kept], tolerance=1e-9, rounds=5)
    truth = optimum(kept, 4.0, b.numpy())
    np.testing.assert_allclose(refined.state.w.numpy(), truth, atol=1e-6)
    assert float(np.linalg.norm(refined.state.w.numpy() - truth)) <= float(refined.certificate.bound or 0) + 1e-6
    assert refined.certificate.gradient_norm <= REMOVAL.allowed


def test_the_perturbation_is_part_of_the_state_and_never_the_same_twice() -> None:
    data = examples(50)
    first, second = (train(SPEC, [data], certified_removal=REMOVAL).state for _ in range(2))
    assert first.regularizer.linear is not None
    assert second.regularizer.linear is not None
    assert not torch.equal(first.regularizer.linear, second.regularizer.linear)
    again = State.from_bytes(first.to_bytes())
    assert again.regularizer.linear is not None
    torch.testing.assert_close(again.regularizer.linear, first.regularizer.linear)
    assert train(SPEC, [data]).state.regularizer.linear is None


def test_the_allowance_is_that_of_the_theorem() -> None:
    c = 2.5
    delta = 1.5 * math.exp(-(c**2) / 2)
    assert CertifiedRemoval(epsilon=0.7, delta=delta, sigma=2.0).allowed == pytest.approx(2.0 * 0.7 / c)


def test_networks_have_no_certified_removal() -> None:
    spec = {**SPEC, "architecture": {"kind": "mlp", "hidden": [4]}}
    with pytest.raises(ValueError, match="linear models only"):
        train(spec, [examples(20)], certified_removal=REMOVAL)
