"""The variational posterior, against its fixed point over all rows and a long walk through the true one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from bench.paper.variational import adapt_variational
from core.kprior import AddData, ChangeRegularizer, RemoveData, adapt, train
from core.kprior.state.posterior import NoPosterior, laplace
from tests.core.kprior.oracles import design_matrix, walk
from tests.core.kprior.problems import EVERYTHING, KERNEL, LINEAR, examples_of, l2, rows, spec_of, without


def batch_posterior(kind: str, phi: np.ndarray, y: np.ndarray, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """The variational posterior of all rows, by its own fixed point in NumPy: mean, and precision."""
    nodes, shares = np.polynomial.hermite_e.hermegauss(60)
    shares = shares / shares.sum()
    m, S = np.zeros(phi.shape[1]), np.eye(phi.shape[1])
    for _ in range(400):
        v = np.einsum("nd,de,ne->n", phi, np.linalg.inv(S), phi)
        f = (phi @ m)[:, None] + np.sqrt(v)[:, None] * nodes
        h = {"binary": expit, "number": lambda f: f, "count": np.exp}[kind](f)
        slope = {"binary": h * (1 - h), "number": np.ones_like(h), "count": h}[kind] @ shares
        H = (phi * slope[:, None]).T @ phi + delta * np.eye(len(m))
        S = S + 0.5 * (H - S)
        m = m - 0.5 * np.linalg.solve(S, phi.T @ (h @ shares - y) + delta * m)
    return m, S


@pytest.mark.parametrize("architecture", [LINEAR, KERNEL], ids=["linear", "kernel"])
@pytest.mark.parametrize("kind", ["binary", "number", "count"])
def test_with_all_in_memory_the_adapted_posterior_is_that_of_all_rows(kind: str, architecture: dict[str, Any]) -> None:
    """Eq. 18: the K-prior as the prior, whatever comes or goes; and of numbers it is Laplace's."""
    data = examples_of(kind, 90, 2, 3)
    spec = spec_of(kind, 2, architecture, l2(1.0, penalize_bias=True))
    base = train(spec, [rows(data, 0, 70)], policy=EVERYTHING)  # type: ignore[arg-type]
    gone = rows(data, 0, 10)
    tasks = [AddData([rows(data, 70, 90)]), RemoveData([gone]), ChangeRegularizer(l2(2.0, penalize_bias=True))]
    found = adapt_variational(base.state, base.memory, tasks)  # type: ignore[arg-type]
    left = without(data, gone)
    m, S = batch_posterior(kind, design_matrix(left.x, architecture), left.y[:, 0].numpy(), 2.0)
    assert np.allclose(found.mean, m, rtol=1e-4, atol=1e-5)
    assert np.allclose(found.precision, S, rtol=1e-4, atol=1e-4)
    if kind == "number":
        state = adapt(base.state, base.memory, tasks).state  # type: ignore[arg-type]
        assert torch.allclose(found.mean, state.w, atol=1e-6)
        whole = laplace(state)
        Sigma = torch.linalg.inv(found.precision)
        assert np.allclose(whole.root.T @ whole.root / whole.noise, Sigma, rtol=1e-3, atol=1e-5)


def test_the_variational_posterior_is_nearer_to_the_true_one_than_laplace_where_that_is_skewed() -> None:
    data = examples_of("binary", 25, 2, 9)
    spec = spec_of("binary", 2, LINEAR, l2(0.2, penalize_bias=True))
    base = train(spec, [data], policy=EVERYTHING)  # type: ignore[arg-type]
    found = adapt_variational(base.state, base.memory)
    phi, y = design_matrix(data.x, LINEAR), data.y[:, 0].numpy()
    root = np.linalg.cholesky(np.linalg.inv(found.precision.numpy()))
    walked = walk(phi, y, 0.2, found.mean.numpy(), root, 60_000)
    truth = walked.mean(0)
    assert np.linalg.norm(found.mean.numpy() - truth) < 0.5 * np.linalg.norm(base.state.w.numpy() - truth)
    assert np.allclose(np.diag(root @ root.T) ** 0.5, walked.std(0), rtol=0.2)
    classes = train(spec_of("classes", 2), [examples_of("classes", 30, 2)], policy=EVERYTHING)  # type: ignore[arg-type]
    with pytest.raises(NoPosterior, match="one output"):
        adapt_variational(classes.state, classes.memory)
