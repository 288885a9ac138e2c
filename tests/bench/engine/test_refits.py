"""The yardsticks of GLMs: what a refit is said to reach, it reaches."""

from __future__ import annotations

import numpy as np
import pytest

from bench.engine.anchored import CHANGES, generate_rows, shifts
from bench.engine.data import embeddings, logistic_rows
from bench.engine.refits import Refitter, distance, exact_optimum, first_tolerance, gradient, relative_bound


@pytest.mark.parametrize("penalize_bias", [True, False])
def test_refit_is_as_near_to_the_optimum_as_was_asked(penalize_bias: bool) -> None:
    rows = logistic_rows(2_000, 5)
    truth = exact_optimum(rows, 1.0, penalize_bias, np.zeros((1, 6)))
    assert np.linalg.norm(gradient(rows, 1.0, penalize_bias, truth)) < 1e-6
    refitter = Refitter(rows, 1.0, penalize_bias)
    warm = refitter.matched(0.9 * truth, 1e-3, lambda w: distance(w, truth), 1e-2)
    assert warm.matched
    assert distance(warm.w, truth) <= 1e-3


def test_bound_of_a_softmax_refit_covers_its_distance() -> None:
    rows = embeddings(8, 3, 600, 3.0)

    def bound(w: np.ndarray) -> float:
        return relative_bound(rows, 2.0, w)

    refitter = Refitter(rows, 2.0, True)
    rough = refitter.matched(None, 0.01, bound, first_tolerance(rows, 2.0, 1.0, 0.01))
    exact = refitter.matched(None, 1e-4, bound, rough.tolerance / 100)
    assert rough.matched
    assert distance(rough.w, exact.w) <= 0.0102


def test_retained_rows_are_the_base_without_removed_and_with_added_rows() -> None:
    rows, count = generate_rows(3_000, 1), 3_000
    base = set(range(CHANGES, CHANGES + count))
    for shift in shifts(rows, count):
        gone, come, retained, stays = (
            {int(key) for chunk in part for key in chunk.key}
            for part in (shift.gone, shift.come, shift.retained, shift.stays)
        )
        assert gone <= base
        assert not come & base
        assert stays == base - gone
        assert retained == stays | come
