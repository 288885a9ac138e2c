"""GLMs with fewer rows than features: the inverse in the space of the rows is the dense one, and training ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.kprior import Examples, Predictor, RemoveData, adapt, refine, train
from core.kprior.curvature import glm_hessian
from core.kprior.curvature.row_space import has_few_rows, row_space_inverse
from core.kprior.data.examples import EncodedExamples
from tests.core.kprior.oracles import newton
from tests.core.kprior.problems import FAMILIES, examples_of, l2, rows, spec_of

WIDE = 20_000


@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_inverse_is_that_of_the_blocks_of_the_hessian(kind: str, weighted: bool, penalize_bias: bool) -> None:
    data = examples_of(kind, 12, 30, 3)
    predictor = Predictor(spec_of(kind, 30))
    K, generator = predictor.family.outputs, torch.Generator().manual_seed(1)
    w = 0.1 * torch.randn(predictor.size, generator=generator, dtype=torch.float64)
    delta = torch.full((K, 31), 0.7, dtype=torch.float64)
    delta[:, -1] = 0.7 if penalize_bias else 0.0
    phi = predictor.features(data.x).double()
    weight = torch.rand(12, generator=generator, dtype=torch.float64) + 0.5 if weighted else None
    encoded = EncodedExamples(data.key, phi, data.y.double(), weight)
    assert has_few_rows(predictor, 12, delta)
    solve = row_space_inverse(predictor, w, encoded, delta.reshape(-1))

    H = glm_hessian(phi, predictor.family, phi @ w.view(K, -1).T, weight, data.y.double())
    blocks = torch.block_diag(*(H.view(K, 31, K, 31)[k, :, k] for k in range(K))) + torch.diag(delta.reshape(-1))
    v = torch.randn(predictor.size, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(blocks @ solve(v), v, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["binary", "number", "count"])
def test_few_rows_of_many_features_are_trained_to_their_optimum(kind: str) -> None:
    """All but decided by the rows, a bias without a penalty was left far away, and no certificate was within reach."""
    rng = np.random.default_rng(0)
    labels = {"binary": rng.random(60) < 0.3, "number": 5 + rng.normal(size=60), "count": rng.poisson(0.5, 60)}
    x, y = rng.normal(size=(60, WIDE)), labels[kind].astype(float)[:, None]
    data = Examples(torch.arange(60), torch.from_numpy(x), torch.from_numpy(y))
    found = train(spec_of(kind, WIDE, regularizer=l2(1.0)), [data])
    assert found.converged
    assert_covered(found.state.w, found.certificate.bound if found.certificate else np.nan, kind, data)
    adapted = adapt(found.state, found.memory, [RemoveData([rows(data, 0, 5)])])
    left = rows(data, 5, 60)
    certified = refine(adapted.state, adapted.memory, [left], tolerance=0.01, rounds=20)
    assert certified.certificate.meets(0.01)
    assert certified.state is not None
    assert_covered(certified.state.w, certified.certificate.bound, kind, left)


def assert_covered(w: torch.Tensor, bound: float | None, kind: str, data: Examples) -> None:
    phi = np.c_[data.x.numpy(), np.ones(len(data))].astype(float)
    # in the space of the rows, where the optimum is: P is too large for an oracle that takes the whole of it
    basis = np.linalg.qr(phi[:, :-1].T)[0]
    inside = np.c_[phi[:, :-1] @ basis, phi[:, -1]]
    truth = newton(kind, inside, data.y.numpy(), np.r_[np.ones(len(data)), 0])
    optimum = np.r_[basis @ truth[:-1], truth[-1]]
    assert bound is not None
    assert np.linalg.norm(w.numpy() - optimum) <= bound <= 0.01 * np.linalg.norm(optimum)
