"""Drift of columns: counts, the stability index, and what chance alone does to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2_contingency

from core.quality.drift import MIN_ROWS, Binning, chance_of_difference, measure, stability_index

tables = arrays(np.int64, st.tuples(st.just(2), st.integers(2, 12)), elements=st.integers(0, 1000)).filter(
    lambda table: bool(table.sum(0).all() and table.sum(1).all())
)
values = arrays(np.float64, st.integers(1, 60), elements=st.floats(-5, 5) | st.just(float("nan")))


@given(values, values)
def test_counts_can_be_added_and_subtracted(one: np.ndarray, other: np.ndarray) -> None:
    binning = Binning.of_numbers(one)
    both = binning.count(np.concatenate([one, other]))
    assert (both == binning.count(one) + binning.count(other)).all()
    assert (both - binning.count(other) == binning.count(one)).all()
    assert both.sum() == len(one) + len(other)


@given(values)
def test_deciles_split_the_reference_evenly(reference: np.ndarray) -> None:
    known = reference[~np.isnan(reference)]
    counts = Binning.of_numbers(reference).count(reference)
    assert counts[-2:].tolist() == [0, len(reference) - len(known)]
    assert (counts[:-2] > 0).all() == (len(known) > 0)  # every bin is used
    # a bin has more than a tenth only where values repeat
    most = np.unique(known, return_counts=True)[1].max(initial=0)
    assert counts[:-2].max() <= len(known) / 10 + 1 + most


def test_the_same_distribution_does_not_drift() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        reference, window = rng.normal(size=5_000), rng.normal(size=MIN_ROWS)
        binning = Binning.of_numbers(reference)
        found.append(measure("x", binning.count(reference), binning.count(window)))
    assert not any(drift.drifted for drift in found)
    assert 0.01 <= np.mean([drift.p_value < 0.05 for drift in found]) <= 0.1


@pytest.mark.parametrize("shift", [0.8, -0.8])
def test_a_shifted_column_drifts(shift: float) -> None:
    rng = np.random.default_rng(1)
    reference, window = rng.normal(size=5_000), rng.normal(shift, size=500)
    binning = Binning.of_numbers(reference)
    drift = measure("x", binning.count(reference), binning.count(window))
    assert drift.drifted
    assert drift.p_value < 1e-6


@given(tables)
def test_the_p_value_is_that_of_the_chi_squared_test(table: np.ndarray) -> None:
    assert chance_of_difference(*table) == pytest.approx(chi2_contingency(table).pvalue, rel=1e-9, abs=1e-300)


def test_missing_and_unseen_values_are_reported() -> None:
    binning = Binning(categories=3)
    reference, window = (
        binning.count(np.repeat([0.0, 1.0, 2.0], 100)),
        binning.count(np.array([0.0] * 100 + [3.0] * 60 + [np.nan] * 40)),
    )
    drift = measure("plan", reference, window)
    assert (drift.missing, drift.unseen, drift.drifted) == (0.2, 0.3, True)


def test_few_rows_never_count_as_drift() -> None:
    drift = measure("plan", np.array([300, 0, 0, 0]), np.array([0, MIN_ROWS - 1, 0, 0]))
    assert drift.psi > 1
    assert not drift.drifted


def test_the_index_is_symmetric_and_zero_for_equal_shares() -> None:
    one, other = np.array([10, 20, 30]), np.array([30, 20, 10])
    assert stability_index(one, other) == pytest.approx(stability_index(other, one))
    assert stability_index(one, one) == 0
