"""The certificate and refinement: finite and tight where problems are tame, infinite where there is no optimum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench.paper.objective.build import data_gradient
from core.kprior import (
    AddData,
    Examples,
    RemoveData,
    State,
    adapt,
    certify,
    refine,
    train,
)
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Reuse
from core.kprior.model.gauge import shift_directions
from tests.core.kprior import oracles
from tests.core.kprior.problems import (
    EVERYTHING,
    LINEAR,
    LOSSES,
    QUADRATIC,
    TENTH,
    distance,
    examples_of,
    l2,
    rows,
    spec_of,
    stop_at,
    stop_early,
    without,
)


def true_gradient(state: State, data: Examples) -> Tensor:
    return data_gradient(state.predictor, state.w, data) + state.regularizer.gradient(state.w)


def adapted_after_removal(kind: str, penalize_bias: bool = False) -> tuple[State, Examples, Examples]:
    """A state adapted with a tenth of the past, its memory's rows, and the data it stands for."""
    data = examples_of(kind, 420, 4)
    base, new = rows(data, 0, 400), rows(data, 400, 420)
    gone = base.take(base.x[:, 0] > 1)
    trained = train(spec_of(kind, 4, regularizer=l2(1.0, penalize_bias)), base.chunks(64), policy=TENTH)
    adapted = adapt(trained.state, trained.memory, [RemoveData([gone]), AddData([new])], policy=TENTH)
    return adapted.state, adapted.memory, without(data, gone)


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("away", [1e-4, 1e-2, 5e-2])
def test_bound_is_within_twice_the_truth_for_two_classes(penalize_bias: bool, seed: int, away: float) -> None:
    data = examples_of("binary", 300, 4, seed)
    spec = spec_of("binary", 4, regularizer=l2(1.0, penalize_bias))
    state, memory = stop_early(spec, data, TENTH, away, seed)
    bound = certify(state, memory, data.chunks(64)).certificate.bound
    truth = distance(state, oracles.retrain(spec, data))
    assert bound is not None
    assert truth <= bound <= 2 * truth


@pytest.mark.parametrize("penalize_bias", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
def test_bounds_are_finite_and_useful_after_an_ordinary_adaptation(kind: str, penalize_bias: bool) -> None:
    state, memory, left = adapted_after_removal(kind, penalize_bias)
    measured = certify(state, memory, left.chunks(64), holdout=left.chunks(50))
    certificate, there = measured.certificate, measured.refined_certificate
    assert certificate.kind == "bound"
    assert certificate.bound is not None
    assert certificate.bound < 0.2 * float(state.w.norm())
    assert certificate.relative == pytest.approx(certificate.bound / float(state.w.norm()))
    assert certificate.prediction_bound is not None
    assert math.isfinite(certificate.prediction_bound)
    assert there is not None
    assert there.bound is not None
    assert there.bound < 0.5 * certificate.bound or there.bound < 1e-12


@pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC])
@pytest.mark.parametrize("kind", LOSSES)
def test_pass_measures_gradient_and_curvature_exactly(kind: str, architecture: dict[str, object]) -> None:
    data = examples_of(kind, 120, 3)
    spec = spec_of(kind, 3, architecture)
    state, memory = stop_early(spec, data, TENTH)
    blank = replace(state.anchor, gradient=torch.zeros_like(state.w))
    measured = certify(replace(state, anchor=blank), memory, data.chunks(50))
    phi = oracles.design_matrix(data.x, architecture)
    deltas = oracles.deltas_of(spec, data.y.shape[1], phi.shape[1])
    gradient, H = oracles.derivatives(kind, phi, data.y.numpy(), deltas, state.w.numpy())
    torch.testing.assert_close(measured.state.gradient, torch.from_numpy(gradient))
    assert measured.state.curvature is not None
    G = torch.from_numpy(H) - torch.diag(torch.from_numpy(deltas))
    torch.testing.assert_close(measured.state.curvature.dense(len(gradient)), G)
    assert measured.certificate.gradient_norm == pytest.approx(float(torch.from_numpy(gradient).norm()))
    assert measured.cost.data_passes == 1
    assert measured.cost.backward_passes == len(data)
    assert measured.cost.seconds > 0


def test_unpenalised_bias_is_not_bounded_by_the_penalty_of_the_others() -> None:
    """|grad| / delta would say 1e-3 here, and be wrong: nothing holds the bias but the data."""
    data = examples_of("binary", 50, 2)
    spec = spec_of("binary", 2, regularizer=l2(1e4))
    state = train(spec, data.chunks(64), policy=EVERYTHING).state
    state, memory = stop_at(state, data, state.w + torch.tensor([0.0, 0.0, 0.05]).double())
    measured = certify(state, memory, [data])
    truth = distance(state, oracles.retrain(spec, data))
    assert measured.certificate.gradient_norm / 1e4 < truth
    assert measured.certificate.bound is not None
    assert truth <= measured.certificate.bound <= 2 * truth


def test_shift_of_all_logits_changes_no_certificate() -> None:
    data = examples_of("classes", 200, 3)
    spec = spec_of("classes", 3)
    state, memory = stop_early(spec, data, TENTH, 0.01)
    shifts = shift_directions(state.predictor, state.regularizer.delta)
    assert shifts is not None
    other, _ = stop_at(state, data, state.w + 7 * shifts[:, 0], TENTH)
    plain, shifted = (certify(s, memory, data.chunks(64), holdout=[data]).certificate for s in (state, other))
    assert plain.bound == pytest.approx(shifted.bound, rel=1e-6)
    assert plain.prediction_bound == pytest.approx(shifted.prediction_bound, rel=1e-6)


@pytest.mark.parametrize("kind", LOSSES)
def test_refine_reaches_its_tolerance_in_few_passes(kind: str) -> None:
    state, memory, left = adapted_after_removal(kind)
    measured = refine(state, memory, left.chunks(64), tolerance=1e-9, rounds=4, holdout=[left])
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 1e-9
    assert measured.cost.data_passes <= 3
    assert distance(measured.state, oracles.retrain(state.spec, left)) <= 1e-9 * float(state.w.norm())
    f = state.predictor.outputs(measured.state.anchor.w, left.x)
    there = torch.isin(left.key, measured.state.memory.key)
    torch.testing.assert_close(measured.state.memory.soft, state.predictor.family.mean(f)[there])


def test_refine_stops_at_once_when_the_tolerance_is_met() -> None:
    data = examples_of("binary", 400, 4)
    trained = train(spec_of("binary", 4), data.chunks(64), policy=TENTH)
    adapted = adapt(trained.state, trained.memory, [RemoveData([rows(data, 7, 9)])], policy=TENTH)
    state, memory, left = adapted.state, adapted.memory, without(data, rows(data, 7, 9))
    measured = refine(state, memory, left.chunks(64), tolerance=0.05)
    assert measured.cost.data_passes == measured.certificate.passes == 0
    assert torch.equal(measured.state.w, state.w)
    forced = Refinement(1.0, reuse=Reuse.LEVERAGES).run(state, memory, left.chunks(64))
    assert forced.cost.data_passes == forced.certificate.passes == 1
    assert torch.equal(forced.state.anchor.w, state.w)


def test_refine_stops_after_its_rounds_and_reports_the_bound() -> None:
    state, memory, left = adapted_after_removal("classes")
    measured = refine(state, memory, left.chunks(64), tolerance=0.0, rounds=2)
    assert measured.cost.data_passes == 2
    assert measured.certificate.bound is not None
    truth = oracles.retrain(state.spec, left)
    assert distance(measured.state, truth) <= measured.certificate.bound + 1e-15
    with pytest.raises(ValueError, match="rounds"):
        refine(state, memory, left.chunks(64), tolerance=0.0, rounds=0)


def test_refine_converges_from_far_away() -> None:
    """Too far for any bound, damped steps still lead home."""
    data = examples_of("binary", 200, 3)
    spec = spec_of("binary", 3, regularizer=l2(0.1))
    state, memory = stop_early(spec, data, TENTH, away=5.0, seed=3)
    assert certify(state, memory, data.chunks(64)).certificate.relative == math.inf
    measured = refine(state, memory, data.chunks(64), tolerance=1e-8, rounds=60)
    assert measured.certificate.relative is not None
    assert measured.certificate.relative <= 1e-8


@pytest.mark.parametrize("kind", ["binary", "classes", "count"])
def test_refined_certificate_does_not_understate_the_gradient(kind: str) -> None:
    state, memory, left = adapted_after_removal(kind)
    measured = certify(state, memory, left.chunks(64))
    assert measured.refined is not None
    assert measured.refined_certificate is not None
    truth = float(true_gradient(measured.refined, left).norm())
    assert measured.refined_certificate.gradient_norm >= truth * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["binary", "classes", "count"])
def test_unreachable_optimum_has_an_infinite_bound(kind: str, seed: int) -> None:
    """All labels alike, and nothing holds the bias: the retrain lies at infinity."""
    data = examples_of(kind, 60, 3, seed)
    y = torch.zeros_like(data.y)
    if kind == "classes":
        y[::2, 0], y[1::2, 1] = 1, 1  # the third class has no example left
    data = replace(data, y=y)
    state = train(spec_of(kind, 3), data.chunks(64), policy=TENTH)
    for away in (0.0, 1.0):
        there, memory = stop_at(state.state, data, state.state.w * (1 - away / 2), TENTH)
        measured = certify(there, memory, data.chunks(64), holdout=[data])
        assert measured.certificate.bound == math.inf
        assert measured.refined_certificate is None or measured.refined_certificate.bound == math.inf
        refined = refine(there, memory, data.chunks(64), tolerance=1e-3, rounds=3)
        assert refined.certificate.bound == math.inf


def test_separable_data_without_a_penalty_have_an_infinite_bound() -> None:
    data = examples_of("binary", 60, 2)
    data = replace(data, y=(data.x[:, :1] > 0).double())
    state = train(spec_of("binary", 2, regularizer=l2(0.0)), [data], policy=EVERYTHING)
    measured = certify(state.state, state.memory, [data])
    assert measured.certificate.bound == math.inf
    assert measured.refined_certificate is None or measured.refined_certificate.bound == math.inf


@pytest.mark.parametrize("size", [10.0, 400.0])
def test_overflowing_predictions_have_an_infinite_bound(size: float) -> None:
    """Counts whose rate is beyond every float: no number can be said, and none is."""
    data = examples_of("count", 60, 2)
    state = train(spec_of("count", 2), [data], policy=EVERYTHING).state
    far = replace(state, w=torch.tensor([size, size, size]).double() * 10)
    memory = replace(state.memory, key=state.memory.key[:0], weight=state.memory.weight[:0], soft=state.memory.soft[:0])
    measured = certify(replace(far, memory=memory), rows(data, 0, 0), [data], holdout=[data])
    assert measured.certificate.bound == math.inf


def test_nothing_is_left_in_the_sums_of_a_removed_example_that_alone_had_a_feature() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    x[1:, 3] = 0
    data = Examples(torch.arange(60), x, (x[:, :1] > 0).double())
    spec = spec_of("binary", 4, QUADRATIC)
    base = train(spec, data.chunks(20)[:2])
    more = adapt(base.state, base.memory, [AddData(data.chunks(20)[2:])])
    less = adapt(more.state, more.memory, [RemoveData([data.take(torch.tensor([0]))])])
    carried, left = less.state.surrogate, data.take(torch.arange(1, 60)).chunks(20)
    measured = certify(less.state, less.memory, left).state.surrogate
    assert carried is not None
    assert measured is not None
    assert carried.gram[3].abs().max() > 0
    for sums in vars(measured).values():
        assert bool((sums[3] == 0).all())
