"""The batch alarm: does a new batch look unlike its predecessors to the champion?

An alarm warns; the promotion gate decides. The limits come from simulations of poisoned batches and of drift.
"""

import math
from collections.abc import Sequence

from core.quality.estimates import Estimate

ALARM_ROWS = 100
"""Batches with fewer rows raise no alarm: their loss is too uncertain."""
ALARM_SIGMAS, ALARM_RATIO = 4.0, 1.10
ALARM_WINDOWS = 5
"""Number of earlier windows without an alarm that make up the usual loss."""


def is_suspicious(batch: Estimate, rows: int, usual: Sequence[float]) -> bool:
    """Whether the champion's loss on a new batch is far above its loss on the last windows without an alarm.

    Parameters
    ----------
    batch
        The champion's loss on the batch, before the model learns it.
    usual
        The losses of earlier windows without an alarm, oldest first.

    Examples
    --------
    >>> is_suspicious(Estimate(0.70, 0.02), rows=600, usual=[0.50, 0.52, 0.51])
    True
    >>> is_suspicious(Estimate(0.55, 0.02), rows=600, usual=[0.50, 0.52, 0.51])
    False
    """
    recent = [loss for loss in usual[-ALARM_WINDOWS:] if math.isfinite(loss)]
    if rows < ALARM_ROWS or not recent:
        return False
    if not math.isfinite(batch.value):
        return True
    expected = sum(recent) / len(recent)
    return batch.value - expected > ALARM_SIGMAS * batch.se and batch.value > ALARM_RATIO * expected
