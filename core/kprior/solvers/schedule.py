"""When a learning rate falls, and when a training ends."""

from __future__ import annotations

import math

from core.kprior.solvers.base import Training


class Schedule:
    """A constant learning rate while the objective falls, then a straight line down to zero, then the end.

    The descent takes a tenth of what came before: Adam at a constant rate ends wherever its noise has just taken it.
    """

    def __init__(self, training: Training, steps: int) -> None:
        self.rate, self.patience = training.learning_rate, training.patience
        self.round = max(1, 20 // steps)
        """Epochs whose mean objective is compared: minibatch noise should not end a solve."""
        self.descent = math.ceil(training.max_epochs / 1.1)
        """The epoch in which the rate begins to fall; earlier if progress ends before."""
        self.end = training.max_epochs
        self.stalled = False
        self._sum, self._seen, self._best, self._waited = 0.0, 0, math.inf, 0

    def learning_rate(self, epoch: int) -> float:
        """The rate in an epoch, counted from zero."""
        if epoch < self.descent:
            return self.rate
        return self.rate * (self.end - epoch) / (self.end - self.descent + 1)

    def over(self, epoch: int, value: float) -> bool:
        """Take an epoch's mean objective; True after the last one."""
        if self.patience is not None and epoch < self.descent and self._stalls(value):
            self.stalled = True
            self.descent = epoch + 1
            self.end = min(self.end, self.descent + math.ceil(0.1 * self.descent))
        return epoch + 1 >= self.end

    def _stalls(self, value: float) -> bool:
        self._sum, self._seen = self._sum + value, self._seen + 1
        if self._seen < self.round:
            return False
        mean, self._sum, self._seen = self._sum / self._seen, 0.0, 0
        if mean < self._best - 1e-3 * abs(self._best) or self._best == math.inf:
            self._best, self._waited = mean, 0
        else:
            self._best, self._waited = min(self._best, mean), self._waited + 1
        return self.patience is not None and self._waited >= self.patience
