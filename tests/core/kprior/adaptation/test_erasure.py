"""After an erasure nobody can tell who was erased: not by replaying it with every candidate, not by any bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core.kprior import (
    CertifiedRemoval,
    Examples,
    Measurement,
    MemoryPolicy,
    RemoveData,
    Result,
    State,
    adapt,
    refine_for_erasure,
    train,
)
from core.kprior.adaptation.erasure import FINEST, choose_grid, rounding_of
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Reuse
from core.kprior.data.examples import concatenate
from tests.core.kprior import oracles
from tests.core.kprior.problems import LOSSES, QUADRATIC, TENTH, distance, examples_of, l2, outputs_of, rows, spec_of

REGULARIZERS = {"free bias": l2(), "all penalised": l2(1.0, True), "weak": l2(1e-3)}


def erased(spec: dict[str, Any], person: Examples, others: Examples, policy: MemoryPolicy = TENTH) -> State | None:
    """The state of a model that knew a person and was made to forget them."""
    found = cleared(spec, person, others, policy)
    return None if found is None else found.state


def cleared(
    spec: dict[str, Any], person: Examples, others: Examples, policy: MemoryPolicy = TENTH
) -> Measurement | None:
    """The same with its certificate and cost."""
    adapted = without_person(spec, person, others, policy)
    return refine_for_erasure(adapted.state, adapted.memory, others.chunks(64), tolerance=0.01, policy=policy)


def without_person(spec: dict[str, Any], person: Examples, others: Examples, policy: MemoryPolicy = TENTH) -> Result:
    """What an adaptation makes of a model that knew a person."""
    trained = train(spec, concatenate([person, others]).chunks(64), policy=policy)
    return adapt(trained.state, trained.memory, [RemoveData([person])], policy=policy)


def strangers(kind: str, dim: int, count: int) -> list[Examples]:
    """People, each with three examples of their own, some of them far out."""
    return [
        Examples(each.key, each.x * (1 + 2 * (n % 3)), each.y)
        for n, each in enumerate(examples_of(kind, 3, dim, seed=100 + n) for n in range(count))
    ]


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize("kind", LOSSES)
def test_state_is_the_same_to_the_last_bit_whoever_was_erased(kind: str, regularizer: str) -> None:
    spec = spec_of(kind, 5, regularizer=REGULARIZERS[regularizer])
    others = rows(examples_of(kind, 400, 5), 3, 400)
    states = [erased(spec, person, others) for person in strangers(kind, 5, 4)]
    assert all(state is not None for state in states)
    assert len({state.to_bytes() for state in states if state is not None}) == 1


@pytest.mark.parametrize("seed", range(3))
def test_an_erased_example_of_large_weight_leaves_the_same_state_as_another(seed: int) -> None:
    spec, others = spec_of("binary", 3, regularizer=l2(0.1)), rows(examples_of("binary", 240, 3, seed=seed), 40, 240)
    ordinary = strangers("binary", 3, 1)[0]
    contrary = examples_of("binary", 40, 3, seed=50 + seed)
    contrary = Examples(contrary.key + 1000, contrary.x * 3, 1 - contrary.y)
    states = [erased(spec, person, others) for person in (ordinary, contrary)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].to_bytes() == states[1].to_bytes()


def test_an_undetermined_weight_does_not_depend_on_its_start() -> None:
    spec, others = (
        spec_of("binary", 2, QUADRATIC, regularizer=l2(0.7, True)),
        rows(examples_of("binary", 140, 2), 3, 140),
    )
    x = others.x.clone()
    x[torch.arange(len(x)), torch.arange(len(x)) % 2] = 0  # no row has both: their product is nowhere
    others = Examples(others.key, x, others.y)
    states = [erased(spec, person, others) for person in strangers("binary", 2, 6)]
    assert None not in states
    assert len({state.to_bytes() for state in states if state is not None}) == 1


def test_a_coarser_grid_hides_erased_examples_where_rounding_errors_are_large() -> None:
    spec, others = spec_of("binary", 5, regularizer=l2(2e-4)), rows(examples_of("binary", 2_000, 5), 3, 2_000)
    twice = [Examples(e.key, e.x[:, [0, 1, 2, 3, 3]], e.y) for e in (others, *strangers("binary", 5, 4))]
    adapted = without_person(spec, twice[1], twice[0])
    near = Refinement(0.0, 3, reuse=Reuse.LEVERAGES).run(adapted.state, adapted.memory, twice[0].chunks(64))
    grid = choose_grid(rounding_of(near), len(adapted.state.w))
    assert grid is not None
    assert grid > FINEST
    states = [erased(spec, person, twice[0]) for person in twice[1:]]
    assert len({None if state is None else state.to_bytes() for state in states} - {None}) == 1
    assert None not in states


@pytest.mark.parametrize("kind", LOSSES)
def test_weights_that_are_drawn_to_given_ones_are_the_same_whoever_was_erased(kind: str) -> None:
    toward = [(j % 7) / 7 - 0.3 for j in range(6 * outputs_of(kind))]
    spec = spec_of(kind, 5, regularizer={**l2(4.0), "columns": {"0": 0.5}, "toward": toward})
    others = rows(examples_of(kind, 400, 5), 3, 400)
    states = [erased(spec, person, others) for person in strangers(kind, 5, 2)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].to_bytes() == states[1].to_bytes()


def test_a_refinement_that_only_meets_the_tolerance_gives_the_person_away() -> None:
    """The attack: replay the removal with each candidate; without the grid only the right one gives these weights."""
    spec, others = spec_of("binary", 5), rows(examples_of("binary", 400, 5), 3, 400)
    weights = set()
    for person in strangers("binary", 5, 4):
        adapted = without_person(spec, person, others)
        found = Refinement(0.01, reuse=Reuse.LEVERAGES).run(adapted.state, adapted.memory, others.chunks(64))
        weights.add(bytes(found.state.w.numpy().data))
    assert len(weights) == 4


@pytest.mark.parametrize("kind", LOSSES)
def test_weights_are_those_of_a_retrain(kind: str) -> None:
    spec, others = spec_of(kind, 4, QUADRATIC), rows(examples_of(kind, 500, 4), 3, 500)
    state = erased(spec, strangers(kind, 4, 1)[0], others)
    assert state is not None
    truth = oracles.retrain(state.spec, others)
    assert distance(state, truth) <= 1e-5 * float(truth.norm())
    assert state.anchor.exact


def test_cost_is_a_few_passes_and_the_certificate_says_how_many() -> None:
    spec, others = spec_of("binary", 5), rows(examples_of("binary", 2_000, 5), 3, 2_000)
    found = cleared(spec, strangers("binary", 5, 1)[0], others)
    assert found is not None
    assert found.certificate.passes == found.cost.data_passes == 5
    assert found.certificate.relative is not None
    assert found.certificate.relative <= 1e-4


def test_perturbation_of_certified_removal_stays_what_it_was() -> None:
    spec, others = spec_of("binary", 5, regularizer=l2(1.0, True)), rows(examples_of("binary", 400, 5), 3, 400)
    person = strangers("binary", 5, 1)[0]
    trained = train(spec, concatenate([person, others]).chunks(64), certified_removal=CertifiedRemoval(1.0, 1e-4, 0.1))
    adapted = adapt(trained.state, trained.memory, [RemoveData([person])])
    found = refine_for_erasure(adapted.state, adapted.memory, others.chunks(64), tolerance=0.01)
    assert found is not None
    assert trained.state.regularizer.linear is not None
    assert found.state.regularizer.linear is not None
    assert torch.equal(found.state.regularizer.linear, trained.state.regularizer.linear)


def test_where_rounding_is_coarser_than_the_grid_nothing_is_claimed() -> None:
    data = examples_of("binary", 200, 3)
    x = data.x.clone()
    x[:, 2] = x[:, 1] + 1e-9 * x[:, 2]
    alike = Examples(data.key, x, data.y)
    assert erased(spec_of("binary", 3, regularizer=l2(1e-9)), rows(alike, 0, 3), rows(alike, 3, 200)) is None


def test_weights_that_are_zero_are_cleared_too() -> None:
    data = examples_of("number", 60, 3)
    nothing = Examples(data.key, data.x, torch.zeros_like(data.y))
    state = erased(spec_of("number", 3), rows(nothing, 0, 3), rows(nothing, 3, 60))
    assert state is not None
    assert not bool(state.w.any())


def test_cost_is_the_same_whoever_was_erased() -> None:
    spec, others = spec_of("binary", 5), rows(examples_of("binary", 400, 5), 3, 400)
    costs = set()
    for person in strangers("binary", 5, 6):
        found = cleared(spec, person, others)
        assert found is not None
        costs.add((found.cost.data_passes, found.cost.backward_passes, found.certificate.passes))
    assert len(costs) == 1


def test_models_without_their_whole_curvature_are_refused() -> None:
    data = examples_of("binary", 60, 3)
    trained = train(spec_of("binary", 3, {"kind": "mlp", "hidden": [3]}), data.chunks(64))
    with pytest.raises(ValueError, match="Retrain the model"):
        refine_for_erasure(trained.state, trained.memory, data.chunks(64), tolerance=0.01)
