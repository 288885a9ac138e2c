"""Drift: how much the distribution of a column, or of the predictions, differs from that of the last full training.

The population stability index (PSI) decides. With p the shares of the reference rows by bin and q the shares of the
window's rows,

    PSI = sum_b (q_b - p_b) ln(q_b / p_b)

where half a row is added to every bin, so that an empty bin does not make it infinite. Bins are deciles of the
reference for numbers and the most frequent values for categories, with one more bin each for missing and for unseen
values. The p-value of a chi-squared test is reported as well, but does not decide: with enough rows, it is small for
any difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, chdtri

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
BINS = 10
DRIFTED = 0.2
"""The usual limit: below 0.1 a distribution counts as stable, above 0.2 as changed."""
MIN_ROWS = 200
"""Rows that the reference and the window need."""
CHANCE = 1e-5
"""Probability with which chance alone may exceed the limit. A model has many columns and is measured often."""
MAX_VALUES = 20
"""Values of a category with bins of their own. The others share a bin: with hundreds of bins, chance alone would give a
PSI above the limit."""


@dataclass(frozen=True)
class Binning:
    """How the values of a column are counted."""

    edges: tuple[float, ...] = ()
    """Upper limits of the bins of a number but the last, ascending: a value equal to an edge belongs below it."""
    categories: int = 0
    """Number of values of a category, which are coded 0, 1, ...; 0: the column is a number."""
    places: tuple[int, ...] = ()
    """The bin of each value of a category; empty: every value has its own."""

    @classmethod
    def of_numbers(cls, values: Numbers) -> Binning:
        """Deciles of the finite values; equal ones are merged.

        Examples
        --------
        >>> Binning.of_numbers(np.arange(5.0)).edges
        (0.0, 1.0, 2.0, 3.0)
        """
        finite = values[np.isfinite(values)]
        if not len(finite):
            return cls()
        edges = np.unique(np.quantile(finite, np.arange(1, BINS) / BINS, method="lower"))
        return cls(tuple(float(edge) for edge in edges if edge < finite.max()))

    @classmethod
    def of_categories(cls, values: Numbers, categories: int) -> Binning:
        """A bin for each value; if there are more than `MAX_VALUES`, the less frequent values share the last one.

        Examples
        --------
        >>> Binning.of_categories(np.repeat(np.arange(30.0), np.arange(30)), 30).places[8:12]
        (20, 20, 0, 1)
        """
        if categories <= MAX_VALUES:
            return cls(categories=categories)
        codes = values[(values >= 0) & (values < categories)].astype(np.int64)
        counts = np.bincount(codes, minlength=categories)
        frequent = np.sort(np.argsort(-counts, kind="stable")[:MAX_VALUES])
        places = np.full(categories, MAX_VALUES)
        places[frequent] = np.arange(MAX_VALUES)
        return cls(categories=categories, places=tuple(places.tolist()))

    @property
    def size(self) -> int:
        """Number of bins: those of the values, one for unseen values and one for missing ones."""
        return ((max(self.places) + 1 if self.places else self.categories) or len(self.edges) + 1) + 2

    def count(self, values: Numbers) -> Counts:
        """(size,) how many values fall into each bin; a code that is not among the category's values counts as unseen.

        Examples
        --------
        >>> Binning(edges=(1.0,)).count(np.array([0.5, 1.0, 7.0, np.nan]))
        array([2, 1, 0, 1])
        >>> Binning(categories=2).count(np.array([0.0, 1.0, 1.0, -1.0]))
        array([1, 2, 1, 0])
        """
        known = values[~np.isnan(values)]
        if self.categories:
            seen = (known >= 0) & (known < self.categories)
            codes = np.where(seen, known, 0).astype(np.int64)
            place = np.where(seen, np.array(self.places)[codes] if self.places else codes, self.size - 2)
        else:
            place = np.searchsorted(np.array(self.edges), known, "left")
        counts = np.bincount(place, minlength=self.size)
        counts[-1] += len(values) - len(known)
        return counts


@dataclass(frozen=True)
class Drift:
    """How a distribution has changed."""

    name: str
    psi: float
    limit: float
    """PSI above which the distribution counts as drifted."""
    p_value: float
    drifted: bool
    too_few_rows: bool
    """Whether one side has fewer than `MIN_ROWS` rows, so that drift cannot be detected."""
    missing: float
    """Share of the window's rows in which the value is missing."""
    unseen: float
    """Share of the window's rows whose category is not among the column's values."""
    reference: list[int]
    """Counts of the reference rows by bin; the last two bins are unseen and missing values."""
    window: list[int]


def stability_index(reference: Counts, window: Counts) -> float:
    """The PSI of two counts; bins that are empty in both do not count.

    Examples
    --------
    >>> round(stability_index(np.array([50, 50]), np.array([500, 500])), 6)
    0.0
    >>> round(stability_index(np.array([500, 500]), np.array([900, 100])), 2)
    0.88
    """
    used = (reference + window) > 0
    p, q = (counts[used] + 0.5 for counts in (reference, window))
    p, q = p / p.sum(), q / q.sum()
    return float(((q - p) * np.log(q / p)).sum())


def limit_for(bins: int, reference: int, window: int, chance: float = CHANCE) -> float:
    """PSI above which a distribution counts as drifted: 0.2, or with few rows what chance alone does not explain.

    Without drift, PSI / (1/n + 1/m) has approximately a chi-squared distribution with (bins - 1) degrees of freedom.

    Examples
    --------
    >>> limit_for(10, 5000, 5000), round(limit_for(10, 200, 200), 2)
    (0.2, 0.39)
    """
    if bins < 2 or not reference or not window:
        return DRIFTED
    return max(DRIFTED, float(chdtri(bins - 1, chance)) * (1 / reference + 1 / window))


def chance_of_difference(reference: Counts, window: Counts) -> float:
    """The p-value of Pearson's chi-squared test that two counts, none of whose bins is empty, have one distribution.

    With two bins, it has Yates's correction for continuity. It is the value of `scipy.stats.chi2_contingency`, which
    takes a second to import.

    Examples
    --------
    >>> round(chance_of_difference(np.array([10, 20, 30]), np.array([30, 20, 10])), 5)
    5e-05
    """
    table = np.stack([reference, window]).astype(np.float64)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    distance, freedom = np.abs(table - expected), len(reference) - 1
    if freedom == 1:
        distance = np.maximum(distance - 0.5, 0.0)
    return float(chdtrc(freedom, (distance**2 / expected).sum()))


def measure(name: str, reference: Counts, window: Counts) -> Drift:
    """Compare the counts of a window with those of the reference."""
    used = (reference + window) > 0
    enough = reference.sum() > 0 and window.sum() > 0
    p_value = chance_of_difference(reference[used], window[used]) if enough and used.sum() > 1 else 1.0
    psi = stability_index(reference, window) if enough else 0.0
    before, now = int(reference.sum()), int(window.sum())
    limit, total = limit_for(int(used.sum()), before, now), max(1, now)
    return Drift(
        name=name,
        psi=psi,
        limit=limit,
        p_value=p_value,
        drifted=psi > limit and min(before, now) >= MIN_ROWS,
        too_few_rows=min(before, now) < MIN_ROWS,
        missing=int(window[-1]) / total,
        unseen=int(window[-2]) / total,
        reference=reference.tolist(),
        window=window.tolist(),
    )
