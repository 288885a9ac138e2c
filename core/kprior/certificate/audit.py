"""The audit of a network: its metrics, and whether they are good enough. Free of torch, since tables store it."""

import math
from dataclasses import dataclass

MAX_AUC_GAP = 0.1
"""How far the AUC of telling removed rows from unseen ones may be from that of a model that never saw them."""
TYPICAL_AUC = 0.4
"""Removed rows for which the judge's AUC is above this are like any others."""
MAX_STILL_NAMED_EXCESS = 0.05
"""How many more of the removed rows than expected may still be given their label, as a fraction."""
MIN_LOSS_FRACTION, MIN_LOSS_SIGMAS = 1 / 3, 2.5
"""How far below the expected loss that of the removed rows may be, as a fraction of it; beyond this, a difference of so
many standard errors is an objection. A network that fits most unseen rows well ranks removed rows among them, although
it knows them by heart: ranks alone do not show it."""
MAX_RANKED_FIRST_GAP = 0.3
"""How much more often than expected, but at least than by chance, the output of a lost class may rank its removed rows
above unseen ones. Shifting that output down changes every prediction, but not this ranking."""
MAX_LOSS_INCREASE, MAX_LOSS_INCREASE_ALTERED = 0.05, 0.25
"""The relative increase of the loss on unseen rows that is accepted; more where the regularizer or the architecture
changed: keeping the old network is no alternative there, and a simpler model may cost something."""


@dataclass(frozen=True)
class Audit:
    """Measurements of an adapted network, for which no bound exists, next to the previous version and a reference.

    The reference is a small network that never saw the removed examples, so its predictions for them are what to expect
    of a retrain. Losses are relative to the smallest possible loss (for counts, half the deviance). A metric is null if
    there were no examples to measure it on.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from core.kprior import Audit
    >>> audit = Audit(
    ...     visits=8_000, unseen=300, unseen_loss=0.31, unseen_loss_before=0.30, unseen_error=0.01,
    ...     retained_loss=0.20, retained_loss_before=0.20, removed=40, membership_auc=0.52, expected_auc=0.50,
    ... )
    >>> audit.objection
    ''
    >>> replace(audit, membership_auc=0.9).objection
    'removed examples are still recognised'
    """

    visits: int = 0
    """Number of single-example gradients computed to make the network, including those of the reference network."""
    unseen: int = 0
    """Number of unseen examples that the metrics of unseen examples were computed on."""
    unseen_loss: float | None = None
    """Mean loss on the unseen examples."""
    unseen_loss_before: float | None = None
    """Mean loss of the previous version on the unseen examples."""
    unseen_error: float | None = None
    """Standard error of the difference between `unseen_loss` and `unseen_loss_before`."""
    retained_loss: float | None = None
    """Mean loss on a sample of the retained training examples."""
    retained_loss_before: float | None = None
    """Mean loss of the previous version on the same sample."""
    removed: int = 0
    """Number of removed examples that the metrics of removed examples were computed on."""
    removed_loss: float | None = None
    """Mean loss on the removed examples."""
    expected_loss: float | None = None
    """Lowest mean loss on the removed examples to expect of a network that never saw them."""
    capped_loss: float | None = None
    """Mean loss on the removed examples, each at most the loss of a constant prediction: beyond that, an example is
    simply unknown."""
    expected_capped_loss: float | None = None
    """The same mean to expect of a network that never saw the removed examples."""
    capped_loss_error: float | None = None
    """Standard error of the difference between `capped_loss` and `expected_capped_loss`."""
    membership_auc: float | None = None
    """Probability that a removed example has a smaller loss than an unseen one. The further it is from `expected_auc`,
    the better removed examples can be told apart from examples that were never seen."""
    expected_auc: float | None = None
    """The same probability for the reference network, which never saw the removed examples."""
    auc_error: float | None = None
    """Standard error of the difference between `membership_auc` and `expected_auc`."""
    forgotten_label_rate: float | None = None
    """Fraction of the removed examples for which the network still predicts the label they had (classes only)."""
    expected_label_rate: float | None = None
    """The fraction to expect of a network that never saw the removed examples."""
    ranked_first: float | None = None
    """Probability that the output for a class without remaining examples is larger for a removed example of this class
    than for an unseen example. A class whose output was only suppressed still ranks its examples first."""
    expected_ranked_first: float | None = None
    """The same probability for the reference network."""
    holdout: bool = True
    """Whether the unseen examples belong to the holdout; otherwise they are retained examples, which the previous
    version was trained on."""
    altered: bool = False
    """Whether the regularizer or the architecture changed."""
    fit: bool = True
    """Whether the reference network was accurate enough to say what to expect."""
    shrunk: float = 1.0
    """Number of training examples of the previous version, relative to the present number, if it was larger: with fewer
    examples, a retrain would have a larger loss as well."""

    @property
    def objection(self) -> str:
        """Why the network is not good enough; empty if it is. Without figures: the words may outlive an erasure."""
        if not self.fit:
            return "no measurement cheaper than a retrain shows how a network without the removed examples would behave"
        if self.membership_auc is not None and self.expected_auc is not None:
            gap, slack = self.membership_auc - self.expected_auc, MAX_AUC_GAP + 2 * (self.auc_error or 0.0)
            if gap > slack:
                return "removed examples are still recognised"
            # what surprises a small network surprises a better one more: only rows like any others can stand out
            if gap < -slack and self.expected_auc > TYPICAL_AUC:
                return "removed examples stand out"
        loss, expected, error = self.capped_loss, self.expected_capped_loss, self.capped_loss_error
        if loss is not None and expected is not None and error is not None:
            far = loss < MIN_LOSS_FRACTION * expected
            if far and expected - loss > MIN_LOSS_SIGMAS * error:
                return "the loss on removed examples is lower than it would be without having seen them"
        if self.forgotten_label_rate is not None and self.expected_label_rate is not None:
            chance = 2 * math.sqrt(self.expected_label_rate * (1 - self.expected_label_rate) / max(1, self.removed))
            if self.forgotten_label_rate > self.expected_label_rate + MAX_STILL_NAMED_EXCESS + chance:
                return "too many of the removed examples are still predicted as they were labelled"
        if self.ranked_first is not None and self.expected_ranked_first is not None:
            largest = max(0.5, self.expected_ranked_first) + MAX_RANKED_FIRST_GAP
            if self.ranked_first > largest:
                return "the output for a removed class still recognises its examples"
        if self.unseen_loss is None or self.unseen_loss_before is None:
            return ""
        before, slack = self.unseen_loss_before, 2 * (self.unseen_error or 0.0)
        max_ratio = (
            self.shrunk * (1 + (MAX_LOSS_INCREASE_ALTERED if self.altered else MAX_LOSS_INCREASE))
            if self.holdout
            else 2.0
        )
        if not self.unseen_loss <= max_ratio * before + slack:
            what = "the holdout" if self.holdout else "retained examples"
            return f"its loss on {what} is clearly larger than that of the previous version"
        return ""
