"""One contract for all curvature backends, on every kind of model they support."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core.kprior.curvature import (
    BACKENDS,
    Blocks,
    Curvature,
    Diagonal,
    Full,
    Kronecker,
    cholesky,
    curvature_for,
    ggn_rows,
    glm_hessian,
)
from core.kprior.data.examples import Examples
from core.kprior.model import families
from core.kprior.model.predictor import Predictor
from tests.core.kprior.problems import spec_of, target_of

MODELS: dict[str, dict[str, Any]] = {
    "linear": spec_of("classes", 4),
    "counts": spec_of("count", 4),
    "mlp": spec_of("classes", 4, {"kind": "mlp", "hidden": [5]}),
    "convolutions": {
        "input": {"kind": "image", "shape": [1, 16, 16]},
        "target": target_of("binary"),
        "architecture": {"kind": "lenet5"},
    },
}
SMALL = [name for name in MODELS if name != "convolutions"]


def suits(kind: str, model: str) -> bool:
    """Blocks are for GLMs alone."""
    return kind != "blocks" or MODELS[model]["architecture"]["kind"] == "linear"


small_pairs = pytest.mark.parametrize(("kind", "model"), [(k, m) for k in BACKENDS for m in SMALL if suits(k, m)])
small_models = pytest.mark.parametrize("model", SMALL)
# a whole matrix of 10^4 parameters is nobody's choice
every_pair = pytest.mark.parametrize(
    ("kind", "model"), [(k, m) for k in BACKENDS for m in MODELS if suits(k, m) and (k, m) != ("full", "convolutions")]
)


def model_of(name: str, n: int = 12) -> tuple[Predictor, Tensor, Tensor]:
    """A predictor, weights and inputs."""
    predictor = Predictor(MODELS[name], seed=1)
    generator = torch.Generator().manual_seed(0)
    w = predictor.initial_weights()
    w = w + 0.2 * torch.randn(w.shape, generator=generator).to(w) * (1 if predictor.size < 5000 else 0.05)
    x = torch.randn(n, *predictor.encoder.shape, generator=generator).to(predictor.dtype)
    return predictor, w, x


def filled(kind: str, predictor: Predictor, w: Tensor, *parts: tuple[Tensor, Tensor | None]) -> Curvature:
    curvature = curvature_for(predictor, kind)
    for x, weight in parts:
        curvature.add(predictor, w, x, weight)
    return curvature


def explicit(predictor: Predictor, w: Tensor, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """sum_i v_i J_i' L_i J_i, row by row, from autograd's Jacobian."""
    total = torch.zeros(predictor.size, predictor.size, dtype=torch.float64)
    for i in range(len(x)):
        J = torch.autograd.functional.jacobian(lambda w, i=i: predictor.outputs(w, x[i : i + 1])[0], w).double()
        L = predictor.family.hessian(predictor.outputs(w, x[i : i + 1]))[0].double()
        total += J.T @ L @ J * (1.0 if weight is None else float(weight[i]))
    return total


def probes(predictor: Predictor, count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(count, predictor.size, generator=generator).to(predictor.dtype)


def assert_same(a: Curvature, b: Curvature, predictor: Predictor, tolerance: float) -> None:
    """Equal in what they do to a few vectors, relative to the larger."""
    for v in probes(predictor):
        left, right = a.product(v), b.product(v)
        assert float((left - right).norm()) <= tolerance * float(right.norm()) + 1e-6 * tolerance


def tolerance_of(predictor: Predictor, kind: str) -> float:
    return 1e-9 if predictor.linear and kind != "blocks" else 2e-3


@every_pair
def test_positive_semi_definite(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    curvature = filled(kind, predictor, w, (x, None))
    for v in probes(predictor):
        assert float(v @ curvature.product(v)) >= 0
    if model in SMALL:
        values = torch.linalg.eigvalsh(curvature.dense(predictor.size).double())
        assert float(values[0]) >= -1e-6 * float(values[-1])
    assert any(float(curvature.product(v).norm()) > 0 for v in probes(predictor))


@small_pairs
def test_product_is_that_of_the_dense_matrix(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    curvature = filled(kind, predictor, w, (x, None))
    dense = curvature.dense(predictor.size)
    torch.testing.assert_close(dense, dense.T, rtol=1e-4, atol=1e-5)
    for v in probes(predictor):
        torch.testing.assert_close(curvature.product(v), dense.to(v) @ v, rtol=1e-3, atol=1e-4)


@every_pair
def test_examples_add_up_in_any_parts(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    apart = filled(kind, predictor, w, (x[:5], None), (x[5:], None))
    together = filled(kind, predictor, w, (x, None))
    assert_same(apart, together, predictor, tolerance_of(predictor, kind))


@every_pair
def test_removed_examples_leave_nothing_behind(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    before = filled(kind, predictor, w, (x[:8], None))
    after = filled(kind, predictor, w, (x, None), (x[8:], -torch.ones(4)))
    after.clip()
    assert_same(after, before, predictor, 20 * tolerance_of(predictor, kind))


@every_pair
def test_weight_two_is_the_same_example_twice(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    weighted = filled(kind, predictor, w, (x, torch.full((len(x),), 2.0)))
    twice = filled(kind, predictor, w, (x, None), (x, None))
    assert_same(weighted, twice, predictor, tolerance_of(predictor, kind))
    partly = filled(kind, predictor, w, (x, (torch.arange(len(x)) < 5).float()))
    assert_same(partly, filled(kind, predictor, w, (x[:5], None)), predictor, tolerance_of(predictor, kind))


@every_pair
def test_tensors_round_trip_and_copies_are_independent(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    curvature = filled(kind, predictor, w, (x[:6], None))
    again = BACKENDS[kind].from_tensors(curvature.tensors(), predictor)
    copy = curvature.copy(predictor)
    assert_same(again, curvature, predictor, 0.0)
    before = [curvature.product(v) for v in probes(predictor)]
    copy.add(predictor, w, x[6:])
    for v, value in zip(probes(predictor), before, strict=True):
        assert torch.equal(curvature.product(v), value)


@small_pairs
def test_curvature_without_rows_is_zero(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    for v in probes(predictor):
        assert not curvature_for(predictor, kind).product(v).any()
        assert not filled(kind, predictor, w, (x[:0], None)).product(v).any()


@small_models
@pytest.mark.parametrize("weighted", [False, True])
def test_full_is_the_explicit_sum(model: str, weighted: bool) -> None:
    predictor, w, x = model_of(model)
    weight = torch.linspace(-1, 3, len(x)) if weighted else None
    truth = explicit(predictor, w, x, weight)
    dense = filled("full", predictor, w, (x, weight)).dense(predictor.size).double()
    assert float((dense - truth).norm()) <= 1e-5 * float(truth.norm())
    rows = ggn_rows(predictor, w, x).double()
    plain = explicit(predictor, w, x)
    assert float((rows.T @ rows - plain).norm()) <= 1e-5 * float(plain.norm())


@small_models
def test_diagonal_is_that_of_the_whole(model: str) -> None:
    predictor, w, x = model_of(model)
    diagonal = filled("diagonal", predictor, w, (x, None))
    assert isinstance(diagonal, Diagonal)
    truth = explicit(predictor, w, x).diagonal()
    torch.testing.assert_close(diagonal.diagonal.double(), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["linear", "counts"])
def test_blocks_are_those_on_the_diagonal_of_the_whole(model: str) -> None:
    predictor, w, x = model_of(model)
    K = predictor.family.outputs
    whole = explicit(predictor, w, x).view(K, -1, K, predictor.size // K)
    truth = torch.block_diag(*(whole[k, :, k] for k in range(K)))
    dense = filled("blocks", predictor, w, (x, None)).dense(predictor.size).double()
    torch.testing.assert_close(dense, truth, rtol=1e-4, atol=1e-5)


def test_blocks_estimated_from_drawn_rows_are_near_and_forget_a_row() -> None:
    predictor, w, _ = model_of("linear")
    x = torch.randn(4000, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    phi = predictor.features(x)
    sample = Examples(torch.arange(4000), phi.float(), torch.zeros(4000, 3))
    generator = torch.Generator().manual_seed(0)
    some = Blocks.estimate(predictor, w, sample, 4000, 2000, generator)
    whole = filled("blocks", predictor, w, (x, None))
    for v in probes(predictor):
        assert float((some.product(v) - whole.product(v)).norm()) < 0.15 * float(whole.product(v).norm())
    key = some.drawn[0][:50].unique()
    alone = some.copy(predictor)
    alone.forget(key, phi[key])
    assert not bool(torch.isin(key, alone.drawn).any())
    for k in range(3):
        left = phi[some.drawn[k][~torch.isin(some.drawn[k], key)]].float()
        torch.testing.assert_close(alone.matrices[k], float(some.weight[k][0]) * left.T @ left, rtol=1e-4, atol=1e-3)
    alone.learn(predictor, w, key, phi[key])
    more = filled("blocks", predictor, w, (x[key], None))
    alone.forget(key, phi[key])
    alone.merge(more)
    assert alone.matrices.isfinite().all()


@every_pair
def test_inverse_solves_what_product_multiplies(kind: str, model: str) -> None:
    predictor, w, x = model_of(model)
    curvature = filled(kind, predictor, w, (x, None))
    solve = curvature.inverse(torch.full((predictor.size,), 0.7, dtype=predictor.dtype))
    for v in probes(predictor):
        torch.testing.assert_close(solve(curvature.product(v) + 0.7 * v), v, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_glm_hessian_is_a_sum_of_kronecker_products(
    classes: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "HESSIAN_NUMBERS", at_once * classes**2)
    generator, family = torch.Generator().manual_seed(0), families.Categorical(classes)
    phi = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    f = torch.randn(6, classes, generator=generator, dtype=torch.float64)
    v, L = torch.rand(6, generator=generator, dtype=torch.float64), family.hessian(f)
    truth = sum(v[i] * torch.kron(L[i], torch.outer(phi[i], phi[i])) for i in range(6))
    torch.testing.assert_close(glm_hessian(phi, family, f, v), truth)


def test_backend_suits_the_number_of_parameters() -> None:
    assert isinstance(curvature_for(Predictor(MODELS["linear"])), Full)
    assert isinstance(curvature_for(Predictor(MODELS["convolutions"])), Kronecker)
    assert isinstance(curvature_for(Predictor(spec_of("classes", 400))), Blocks)
    assert isinstance(curvature_for(Predictor(spec_of("count", 20_000))), Diagonal)
    with pytest.raises(ValueError, match="Unknown curvature 'hessian'"):
        curvature_for(Predictor(MODELS["linear"]), "hessian")


def test_cholesky_adds_no_more_than_needed_and_refuses_the_indefinite() -> None:
    definite = torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    factor = cholesky(definite)
    torch.testing.assert_close(factor @ factor.T, definite, rtol=1e-15, atol=0)
    singular = torch.ones(3, 3, dtype=torch.float64)
    factor = cholesky(singular)
    torch.testing.assert_close(factor @ factor.T, singular, rtol=1e-10, atol=1e-10)
    with pytest.raises(ArithmeticError, match="semi-definite"):
        cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))
