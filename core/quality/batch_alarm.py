"""The batch alarm: does a new batch look unlike its predecessors to the champion?

An alarm warns; the promotion gate decides. The limits come from simulations of poisoned batches and of drift.
"""

import math
from collections.abc import Sequence

from core.quality.standard_errors import Estimate

ALARM_ROWS = 100
"""Batches with fewer rows raise no alarm: their loss is too uncertain."""
ALARM_SIGMAS, ALARM_RATIO = 4.0, 1.10
ALARM_WINDOWS = 5
"""Number of earlier windows without an alarm that make up the usual loss."""


def is_suspicious(batch: Estimate, rows: int, usual: Sequence[float], holdout: Estimate | None = None) -> bool:
    """Whether the champion's loss on a new batch is far above its loss on the last windows without an alarm.

    Before there is such a window, the champion's loss on the holdout takes its place.

    Parameters
    ----------
    batch
        The champion's loss on the batch, before the model learns it.
    rows
        Number of rows in the batch.
    usual
        The losses of earlier windows without an alarm, oldest first.
    holdout
        The champion's loss on the holdout.

    Examples
    --------
    >>> is_suspicious(Estimate(0.70, 0.02), rows=600, usual=[0.50, 0.52, 0.51])
    True
    >>> is_suspicious(Estimate(0.55, 0.02), rows=600, usual=[0.50, 0.52, 0.51])
    False
    >>> is_suspicious(Estimate(0.70, 0.02), rows=600, usual=[], holdout=Estimate(0.51, 0.03))
    True
    """
    recent = [loss for loss in usual[-ALARM_WINDOWS:] if math.isfinite(loss)]
    if rows < ALARM_ROWS or (not recent and holdout is None):
        return False
    if not math.isfinite(batch.value):
        return True
    expected = Estimate(sum(recent) / len(recent), 0.0) if recent or holdout is None else holdout
    error = math.hypot(batch.se, expected.se)
    return batch.value - expected.value > ALARM_SIGMAS * error and batch.value > ALARM_RATIO * expected.value
