"""Label errors by confident learning (cleanlab), where it is installed and applies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.quality.scored_rows import ScoredRows


def label_issues(rows: ScoredRows, mean: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """(n,) which labels cleanlab takes for errors, given probabilities (n, K) of models that did not learn them.

    None if cleanlab is not installed, if a class has no example, or if the means of a ridge classifier are no
    probabilities.
    """
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        return None
    probabilities = np.c_[1 - mean[:, 0], mean[:, 0]] if mean.shape[1] == 1 else mean
    labels: NDArray[Any] = rows.truth
    if probabilities.min(initial=0.0) < 0:
        return None
    if len(np.unique(labels)) < probabilities.shape[1] or len(labels) < 2 * probabilities.shape[1]:
        return None
    found: NDArray[np.bool_] = find_label_issues(labels, probabilities, n_jobs=1)
    return found
