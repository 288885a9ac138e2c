"""Encoders against numpy and scikit-learn, on chunks, large offsets, missing and unseen values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PolynomialFeatures
from torch import Tensor

from core.kprior import Examples
from core.kprior.model.architectures import Linear, architecture_of
from core.kprior.model.input_encoders import TableEncoder, encoder_of
from core.kprior.model.predictor import Predictor
from core.kprior.passes.moments import fit_encoder
from core.versions.coefficients import feature_names
from tests.core.kprior.problems import spec_of

NAN = float("nan")


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"name": f"n{i}", "type": "number"} for i in range(count)]


def examples(x: Tensor) -> Examples:
    return Examples(torch.arange(len(x)), x, torch.zeros(len(x), 1))


def fitted(x: Tensor, columns: list[dict[str, Any]], chunk: int = 1000) -> TableEncoder:
    encoder = TableEncoder(columns)
    fit_encoder(encoder, examples(x).chunks(chunk))
    return encoder


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9, -1e12])
def test_numbers_are_standardised_whatever_the_chunks(chunk: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.3]) + offset
    encoder = fitted(x[torch.randperm(500, generator=generator)], numbers(3), chunk)
    # numpy's own mean loses digits at such offsets; of the rest it does not
    centred = x.numpy() - offset
    scale = encoder.scale.numpy()
    np.testing.assert_array_equal(scale, 2.0 ** np.round(np.log2(centred.std(0))))
    assert (np.abs(encoder.mean.numpy() - offset - centred.mean(0)) <= scale / 8 * (1 + 1e-3)).all()
    out = encoder(x)
    assert out.shape == (500, 6)
    np.testing.assert_allclose(out[:, :3].numpy(), (x.numpy() - encoder.mean.numpy()) / scale, atol=1e-3)
    assert (np.abs(out[:, :3].numpy().mean(0)) <= 0.13).all()
    assert ((out[:, :3].numpy().std(0) > 0.7) & (out[:, :3].numpy().std(0) < 1.42)).all()
    assert not out[:, 3:].any()


@pytest.mark.parametrize("chunk", [1, 13])
def test_missing_numbers_count_nowhere_and_are_flagged(chunk: int) -> None:
    x = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[::3, 0] = NAN
    encoder = fitted(x, numbers(2), chunk)
    seen = x[~x[:, 0].isnan(), 0].numpy()
    assert abs(float(encoder.mean[0]) - seen.mean()) <= float(encoder.scale[0]) / 8
    assert float(encoder.scale[0]) == 2.0 ** round(np.log2(seen.std()))
    out = encoder(x)
    assert torch.equal(out[:, 2], x[:, 0].isnan().double())
    assert not out[::3, 0].any()
    assert bool(out.isfinite().all())


def test_column_that_is_always_missing_is_harmless() -> None:
    out = fitted(torch.full((5, 1), NAN), numbers(1))(torch.tensor([[NAN], [3.0]]))
    assert out.tolist() == [[0.0, 1.0], [3.0, 0.0]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -7.7, 1e9 + 0.1, 1e-9])
@pytest.mark.parametrize("chunk", [9, 101])
def test_constant_column_is_not_blown_up(value: float, chunk: int) -> None:
    """The rounding of a mean is no deviation: dividing by it would make noise of a constant, and 1e14 of a change."""
    x = torch.full((101, 1), value, dtype=torch.float64)
    encoder = fitted(x, numbers(1), chunk)
    scale = max(1.0, abs(value))
    constant = encoder(x)[:, 0]
    assert float(constant.abs().max()) <= 0.125 + 1e-9 * scale
    assert float(encoder(x + 1)[0, 0] - constant[0]) == pytest.approx(1.0, abs=1e-6)


def test_categories_have_a_place_for_the_unseen() -> None:
    encoder = encoder_of(
        {"kind": "table", "columns": [{"name": "c", "type": "category", "values": ["a", "b", "c"]}, *numbers(1)]}
    )
    assert encoder.shape == (6,)
    out = encoder(torch.tensor([[0.0, 1.0], [2.0, 1.0], [3.0, 1.0], [-1.0, 1.0], [NAN, 1.0], [1e30, 1.0]]))
    indicators = out[:, 2:]
    assert indicators.argmax(1).tolist() == [0, 2, 3, 3, 3, 3]
    assert indicators.sum(1).tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("values", "places"),
    [(["a", "b"], [0, 1, 2, 2, 3]), (["a", "other"], [0, 1, 1, 1, 2])],
    ids=["of its own", "a value"],
)
def test_a_column_that_takes_unseen_values_has_an_indicator_for_them(values: list[str], places: list[int]) -> None:
    column = {"name": "c", "type": "category", "values": values, "other": True}
    encoder = encoder_of({"kind": "table", "columns": [column]})
    out = encoder(torch.tensor([[0.0], [1.0], [-1.0], [7.0], [NAN]]))
    assert out.argmax(1).tolist() == places
    assert out.sum(1).tolist() == [1.0] * 5
    assert len(feature_names({"kind": "table", "columns": [column]}) or []) == encoder.shape[0]


def test_buffers_are_part_of_the_state_dict_and_come_back() -> None:
    x = torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    encoder, other = fitted(x, numbers(2)), TableEncoder(numbers(2))
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(encoder(x), other(x))


def test_images_of_bytes_become_shares() -> None:
    encoder = encoder_of({"kind": "image", "shape": [1, 2, 2]})
    pixels = torch.tensor([0, 51, 128, 255], dtype=torch.uint8).reshape(1, 1, 2, 2)
    torch.testing.assert_close(encoder(pixels).flatten(), torch.tensor([0, 0.2, 128 / 255, 1]))
    floats = torch.rand(2, 1, 2, 2)
    assert torch.equal(encoder(floats), floats)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
@pytest.mark.parametrize("features", [None, [0, 2], [2], [2, 0, 0]])
def test_polynomial_features_are_those_of_scikit_learn(degree: int, features: list[int] | None) -> None:
    options = {} if features is None else {"features": features}
    body = architecture_of({"kind": "linear", "degree": degree, **options}, (3,), 2)
    assert isinstance(body, Linear)
    x = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    chosen = x.numpy() if features is None else x.numpy()[:, sorted(set(features))]
    truth = PolynomialFeatures(degree).fit_transform(chosen)
    ours = body.features(x).numpy()
    assert ours.shape == truth.shape
    assert (ours[:, -1] == 1).all()

    def ordered(columns: np.ndarray) -> np.ndarray:
        return columns[:, np.lexsort(columns[::-1].round(9))]

    np.testing.assert_allclose(ordered(ours), ordered(truth))
    # each monomial says which inputs it is made of
    named = np.stack([x.numpy()[:, list(m)].prod(1) for m in body.monomials], 1)
    np.testing.assert_allclose(ours, named)


def test_float32_inputs_of_a_linear_model_are_read_in_double() -> None:
    predictor = Predictor(spec_of("number", 2))
    assert predictor.features(torch.ones(3, 2)).dtype == torch.float64
    assert predictor.features(torch.ones(3, 2, dtype=torch.int64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "None"),
        ({"kind": "sound"}, "sound"),
        ({"kind": "vector"}, "dim"),
        ({"kind": "vector", "dim": 0}, "dim"),
        ({"kind": "vector", "dim": -3}, "dim"),
        ({"kind": "image"}, "shape"),
        ({"kind": "image", "shape": [28, 28]}, "shape"),
        ({"kind": "table"}, "columns"),
        ({"kind": "table", "columns": []}, "column"),
        ({"kind": "table", "columns": [{"name": "age"}]}, "age"),
        ({"kind": "table", "columns": [{"name": "age", "type": "colour"}]}, "age"),
        ({"kind": "table", "columns": [{"name": "city", "type": "category"}]}, "city"),
    ],
    ids=str,
)
def test_bad_input_specs_are_refused_in_words(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoder_of(spec)
