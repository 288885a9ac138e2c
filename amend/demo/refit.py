"""The alternative to adapting: refit scikit-learn's model, starting from the previous weights (a warm refit)."""

import time
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

EXACT_TOLERANCE = 1e-10
"""Tolerance of the reference fit."""
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""The first is scikit-learn's default, with which a warm start often stops at once."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Refit:
    encoding: float
    """Seconds to build the design matrix."""
    fit: float
    """Seconds of the fit."""
    distance: float
    """Distance to the reference fit, relative to its norm."""

    @property
    def seconds(self) -> float:
        return self.encoding + self.fit


def refit_warm(
    old: tuple[Numbers, Numbers], new: tuple[Numbers, Numbers], delta: float, precision: float, encoding: float
) -> Refit:
    """Fit the old rows, then refit the new rows from those weights to the given precision.

    Only the first fit that reaches the precision counts, as if its tolerance had been known beforehand. The time to
    read the rows does not count.
    """
    start = fit(*old, delta, TOLERANCES[-1], None)
    truth = weights_of(fit(*new, delta, EXACT_TOLERANCE, start))
    for tolerance in TOLERANCES:
        begun = time.perf_counter()
        weights = weights_of(fit(*new, delta, tolerance, start))
        took, distance = time.perf_counter() - begun, float(np.linalg.norm(weights - truth) / np.linalg.norm(truth))
        refit = Refit(encoding, took, distance)
        if distance <= precision:
            break
    return refit


def fit(x: Numbers, y: Numbers, delta: float, tolerance: float, start: LogisticRegression | None) -> LogisticRegression:
    model = LogisticRegression(C=1 / delta, tol=tolerance, max_iter=1000, warm_start=True)
    if start is not None:
        model.classes_, model.coef_ = start.classes_, start.coef_.copy()
        model.intercept_ = start.intercept_.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def weights_of(model: LogisticRegression) -> Numbers:
    found: Numbers = np.append(model.coef_[0], model.intercept_)
    return found
