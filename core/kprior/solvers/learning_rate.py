"""The learning-rate schedule, which also decides when a training ends."""

import math

from core.kprior.solvers.base import Training


class Schedule:
    """A learning rate that is constant while the objective falls, and then falls linearly to zero.

    The fall takes a tenth of the epochs before it. At a constant rate, Adam's last weights would be noisy.
    """

    def __init__(self, training: Training, steps: int) -> None:
        self.rate, self.patience = training.learning_rate, training.patience
        self.round = max(1, 20 // steps)
        """Number of epochs whose mean objective is compared, so that minibatch noise does not end the training."""
        self.descent = math.ceil(training.max_epochs / 1.1)
        """Epoch in which the rate begins to fall, unless progress ends earlier."""
        self.end = training.max_epochs
        self.stalled = False
        self._sum, self._seen, self._best, self._waited = 0.0, 0, math.inf, 0

    def learning_rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from zero."""
        if epoch < self.descent:
            return self.rate
        return self.rate * (self.end - epoch) / (self.end - self.descent + 1)

    def over(self, epoch: int, value: float) -> bool:
        """Record the mean objective of an epoch; returns whether the training is over."""
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
