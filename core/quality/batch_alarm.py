"""The batch alarm: do new examples look unlike earlier ones to the champion?

An alarm warns; the promotion gate decides. The limits come from simulations of poisoned batches and of drift. The loss
of few examples is too uncertain, so small batches are judged together: otherwise, somebody could poison a model in
steps that are too small for an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from core.quality.standard_errors import Estimate

ALARM_ROWS = 100
"""Examples that are judged together at least."""
ALARM_SIGMAS, ALARM_RATIO = 4.0, 1.10
ALARM_WINDOWS = 5
"""Number of earlier batches without an alarm that make up the usual loss; more if they have fewer than ALARM_ROWS."""


@dataclass(frozen=True)
class BatchLoss:
    """The champion's loss on the new examples of a job, before the model learnt them."""

    loss: Estimate
    rows: int
    job: str | None = None


def find_suspicious(
    batch: BatchLoss, earlier: Sequence[BatchLoss], holdout: Estimate | None = None
) -> list[BatchLoss] | None:
    """Whether the champion's loss on new examples is far above its loss on the last batches without an alarm.

    Before there are such batches, the champion's loss on the holdout takes their place.

    Parameters
    ----------
    batch
        The new examples.
    earlier
        Earlier batches without an alarm, oldest first.
    holdout
        The champion's loss on the holdout.

    Returns
    -------
    The batches that raise the alarm together, the new one first; None without an alarm.

    Examples
    --------
    >>> usual = [BatchLoss(Estimate(loss, 0.02), rows=600) for loss in (0.50, 0.52, 0.51)]
    >>> len(find_suspicious(BatchLoss(Estimate(0.70, 0.02), 600), usual))
    1
    >>> find_suspicious(BatchLoss(Estimate(0.55, 0.02), 600), usual) is None
    True
    >>> len(find_suspicious(BatchLoss(Estimate(0.70, 0.02), 600), [], holdout=Estimate(0.51, 0.03)))
    1
    >>> small = BatchLoss(Estimate(0.90, 0.06), 60)
    >>> find_suspicious(small, usual) is None, len(find_suspicious(small, [*usual, small]))
    (True, 2)
    """
    pool, rest = [batch], list[BatchLoss]()
    for one in reversed(earlier):
        if one.rows < ALARM_ROWS and rows_of(pool) < ALARM_ROWS:
            pool.append(one)
        else:
            rest.append(one)
    if rows_of(pool) < ALARM_ROWS:
        return None
    usual = list[BatchLoss]()
    for one in rest:  # the newest first
        if math.isfinite(one.loss.value) and (len(usual) < ALARM_WINDOWS or rows_of(usual) < ALARM_ROWS):
            usual.append(one)
    expected = combine(usual) if rows_of(usual) >= ALARM_ROWS else holdout
    if expected is None:
        return None
    found = combine(pool)
    if not math.isfinite(found.value):
        return pool
    error = math.hypot(found.se, expected.se)
    above = found.value - expected.value > ALARM_SIGMAS * error and found.value > ALARM_RATIO * expected.value
    return pool if above else None


def rows_of(batches: Sequence[BatchLoss]) -> int:
    return sum(batch.rows for batch in batches)


def combine(batches: Sequence[BatchLoss]) -> Estimate:
    """The mean loss of all rows."""
    total = rows_of(batches)
    # the error of a batch about a single subject is unknown, and can be as large as the loss
    errors = [b.loss.se if math.isfinite(b.loss.se) else abs(b.loss.value) for b in batches]
    value = sum(b.rows * b.loss.value for b in batches) / total
    return Estimate(value, math.hypot(*(b.rows * e for b, e in zip(batches, errors, strict=True))) / total)
