"""What is particular to Kronecker factors: where they are exact, how positions count, which layers they know."""

from __future__ import annotations

import pytest
import torch

from core.kprior.curvature import Kronecker, curvature_for
from core.kprior.model.predictor import Predictor
from tests.core.kprior.curvature.test_curvature import MODELS, explicit, filled, model_of
from tests.core.kprior.model.test_architectures import offer_plugin
from tests.core.kprior.problems import spec_of


@pytest.mark.parametrize("model", ["linear", "counts"])
def test_kronecker_is_exact_for_one_example_of_one_layer(model: str) -> None:
    predictor, w, x = model_of(model, n=1)
    dense = filled("kronecker", predictor, w, (x, None)).dense(predictor.size)
    torch.testing.assert_close(dense.double(), explicit(predictor, w, x))


def test_kronecker_is_exact_for_the_blocks_of_one_example() -> None:
    """For one example a block of a fully connected network is a Kronecker product itself."""
    predictor, w, x = model_of("mlp", n=1)
    dense = filled("kronecker", predictor, w, (x, None)).dense(predictor.size).double()
    truth = explicit(predictor, w, x)
    start = 0
    for layer in ("1", "3"):
        size = sum(v.numel() for k, v in predictor.unflatten(w).items() if k.startswith(f"{layer}."))
        block = slice(start, start + size)
        torch.testing.assert_close(dense[block, block], truth[block, block], rtol=1e-3, atol=1e-5)
        start += size


def test_kronecker_factors_of_a_convolution_are_sums_and_means_over_positions() -> None:
    predictor, w, x = model_of("convolutions", n=3)
    curvature = filled("kronecker", predictor, w, (x, None))
    assert isinstance(curvature, Kronecker)
    layers = predictor.unflatten(w)
    weight, bias = layers["convolutions.0.weight"], layers["convolutions.0.bias"]
    patches = torch.nn.functional.unfold(x, 5).transpose(1, 2)
    A = torch.cat([patches, torch.ones_like(patches[..., :1])], 2).flatten(0, 1)
    torch.testing.assert_close(curvature.inputs["convolutions.0"], A.T @ A, rtol=1e-3, atol=1e-3)
    made = torch.nn.functional.conv2d(x, weight, bias).requires_grad_()
    rest = torch.nn.Sequential(*list(predictor.body.convolutions)[1:], *predictor.body.head)  # type: ignore[arg-type]
    names = {id(p): n for n, p in predictor.body.named_parameters()}
    given = {n: layers[names[id(p)]] for n, p in rest.named_parameters()}
    f = torch.func.functional_call(rest, given, (made,))
    root = predictor.family.hessian_root(f.detach())
    (flow,) = torch.autograd.grad(f, made, root[:, :, 0])
    b = flow.flatten(2).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(curvature.outputs["convolutions.0"], b.T @ b / patches.shape[1], rtol=1e-3, atol=1e-6)


def test_kronecker_follows_layers_not_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_plugin(monkeypatch)
    spec = spec_of("classes", 4, {"kind": "plugin", "name": "backwards", "width": 3})
    predictor = Predictor(spec, seed=1)
    w, x = predictor.initial_weights(), torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    dense = filled("kronecker", predictor, w, (x, None)).dense(predictor.size).double()
    truth = explicit(predictor, w, x)
    torch.testing.assert_close(dense.diagonal(), truth.diagonal(), rtol=1e-3, atol=1e-5)


def test_kronecker_refuses_layers_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor(MODELS["mlp"])
    monkeypatch.setattr(predictor, "layers", lambda: {"odd": torch.nn.LayerNorm(3)})
    assert not Kronecker.supports(predictor)
    with pytest.raises(ValueError, match="Kronecker"):
        curvature_for(predictor, "kronecker")
