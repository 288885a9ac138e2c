"""How much worse an adapted model may be that has no bound on its distance to a retrain."""

LOSS_FACTOR, LOSS_SLACK = 1.25, 0.02
"""How much larger the holdout loss of a version without a bound may be than its parent's: factor and slack."""


def is_worse_without_bound(before: float, after: float) -> bool:
    """Whether the holdout loss grew so much that the model must be retrained.

    >>> is_worse_without_bound(0.4, 0.5), is_worse_without_bound(0.4, 0.6), is_worse_without_bound(0.4, float("nan"))
    (False, True, True)
    """
    return not after <= LOSS_FACTOR * before + LOSS_SLACK
