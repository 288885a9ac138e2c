"""What can be said of a network, for which no bound exists: figures, and whether they are good enough.

The yardstick is doing nothing: the old network. Has the new one forgotten what was removed, as far as an onlooker can
tell by its losses, and is it no worse on rows that neither has seen? Nothing here reads all the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.cost import Cost
from core.kprior.data.examples import Examples
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.objective.forgetting import forgetting_levels, percentiles, uninformed_loss
from core.kprior.passes.row_losses import audit_rows, fraction_true

MAX_AUC_GAP = 0.1
"""How far the AUC of telling removed rows from unseen ones may be from that of a model that never saw them."""
TYPICAL_AUC = 0.4
"""Removed rows for which the judge's AUC is above this are like any others."""
MIN_GONE_CLASS_LOSS = 3.0
"""The least loss of a row whose class has no row left: the class is given 5 %."""
MAX_STILL_NAMED_EXCESS = 0.05
"""How many more of the removed rows than expected may still be given their label, as a fraction."""
MAX_LOSS_INCREASE, MAX_LOSS_INCREASE_ALTERED = 0.05, 0.25
"""The relative increase of the loss on unseen rows that is accepted; more where the regularizer or the architecture
changed: keeping the old network is no alternative there, and a simpler model may cost something."""


@dataclass(frozen=True)
class Audit:
    """Measured figures of a network that was adapted, next to those of doing nothing and of a judge.

    The judge is a small network that never saw the removed rows: what it says of them is what should be expected.
    Losses are above the least possible one (of counts half the deviance). None: there was nothing to measure.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from core.kprior import Audit
    >>> audit = Audit(
    ...     visits=8_000, unseen=300, unseen_loss=0.31, unseen_loss_before=0.30, unseen_error=0.01,
    ...     kept_loss=0.20, kept_loss_before=0.20, removed=40, membership_auc=0.52, expected_auc=0.50,
    ... )
    >>> audit.objection
    ''
    >>> replace(audit, membership_auc=0.9).objection
    'removed examples are still known'
    """

    visits: int
    """Rows that were differentiated to make the network, judge included."""
    unseen: int
    """Rows that the figures of unseen rows are of."""
    unseen_loss: float | None
    unseen_loss_before: float | None
    """The old network's: doing nothing."""
    unseen_error: float | None
    """The standard error of their difference."""
    kept_loss: float | None
    """Of some retained rows."""
    kept_loss_before: float | None
    removed: int = 0
    """Rows that the figures of removed rows are of."""
    removed_loss: float | None = None
    expected_loss: float | None = None
    """What rows like the removed ones should lose at least, never seen."""
    membership_auc: float | None = None
    """The chance that a removed row has a smaller loss than an unseen one; as far from `expected_auc` to either side as
    removed rows can be told from rows never seen."""
    expected_auc: float | None = None
    auc_error: float | None = None
    """The standard error of their difference."""
    still_named: float | None = None
    """The share of removed rows whose label is still the prediction (classes)."""
    expected_named: float | None = None
    holdout: bool = True
    """Whether the unseen rows are a holdout's; else they are retained rows, which the old network had seen."""
    altered: bool = False
    """Whether the regularizer or the architecture changed."""
    fit: bool = True
    """Whether the judge was good enough to tell what is to be expected."""
    shrunk: float = 1.0
    """How many times as many examples the old network stands for, if they have become fewer: who learns from less loses
    more, a retrain, too."""

    @property
    def objection(self) -> str:
        """Why the network is not good enough; empty if it is. Without figures: the words may outlive an erasure."""
        if not self.fit:
            return "nothing that is cheaper than a retrain can tell how a network without the removed examples would be"
        if self.membership_auc is not None and self.expected_auc is not None:
            gap, slack = self.membership_auc - self.expected_auc, MAX_AUC_GAP + 2 * (self.auc_error or 0.0)
            if gap > slack:
                return "removed examples are still known"
            # what surprises a small network surprises a better one more: only rows like any others can stand out
            if gap < -slack and self.expected_auc > TYPICAL_AUC:
                return "removed examples stand out"
        if self.still_named is not None and self.expected_named is not None:
            chance = 2 * math.sqrt(self.expected_named * (1 - self.expected_named) / max(1, self.removed))
            if self.still_named > self.expected_named + MAX_STILL_NAMED_EXCESS + chance:
                return "too many of the removed examples are still predicted as they were labelled"
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
            return f"it lost more on {what} than the version before"
        return ""


@dataclass(frozen=True)
class Judgement:
    """What a network that never saw the removed rows says of them."""

    percentile: Tensor
    """(r,) of each removed row among unseen ones, by loss."""
    removed_accuracy: float
    """The share of removed rows whose label it predicts."""
    unseen_accuracy: float
    """And of unseen ones."""
    level: Tensor
    """(r,) the loss that each removed row should have at least."""
    loss: float
    """Its mean loss on unseen rows."""
    uninformed: float
    """That of who knows nothing but the mean of the targets."""

    @classmethod
    def of(
        cls,
        predictor: Predictor,
        w: Tensor,
        removed: Examples,
        unseen: Examples,
        known: Tensor | None,
        lost: Tensor | None,
    ) -> Judgement:
        """`known`: the old network's losses on the unseen rows, if it had not seen them; else the judge's must do.

        `lost` says which classes have no row left: theirs are a surprise to anybody, and nobody names them.
        """
        gone, fresh = audit_rows(predictor, w, removed), audit_rows(predictor, w, unseen)
        mine = fresh.losses
        percentile, hits = percentiles(gone.losses, mine), gone.accuracy
        without = torch.zeros(len(removed), dtype=torch.bool)
        if lost is not None and bool(lost.any()):
            without = lost[classes_of(removed.y).cpu()]
            percentile = torch.where(without, torch.ones_like(percentile), percentile)
            rest = gone.right[~without]
            hits = fraction_true(rest) * len(rest) / len(removed)
        level = forgetting_levels(percentile, mine if known is None else known)
        level = torch.where(without, level.clamp(min=MIN_GONE_CLASS_LOSS), level)
        uninformed = uninformed_loss(predictor.family, unseen.y)
        return cls(percentile, hits, fresh.accuracy, level, float(mine.mean()), uninformed)

    def is_fit(self, before: Tensor) -> bool:
        """Whether the judge's word counts: it has learnt half of what the old network knew of unseen rows."""
        old = float(before.mean())
        return self.loss <= max(1.1 * old, (old + self.uninformed) / 2)


@dataclass(frozen=True)
class Yardstick:
    """What a network is held against: doing nothing, and what a judge says."""

    unseen: Examples
    before: Tensor
    """(n,) the old network's losses on them."""
    kept: Examples
    kept_before: Tensor
    removed: Examples | None
    judgement: Judgement | None
    holdout: bool
    altered: bool
    shrunk: float

    def measure(self, predictor: Predictor, w: Tensor, cost: Cost) -> Audit:
        """The figures of a network."""
        unseen, kept = audit_rows(predictor, w, self.unseen), audit_rows(predictor, w, self.kept).losses
        after = unseen.losses
        cost.forward_passes += len(self.unseen) + len(self.kept)
        figures = {
            "visits": cost.backward_passes,
            "unseen": len(self.unseen),
            "unseen_loss": finite_mean(after),
            "unseen_loss_before": finite_mean(self.before),
            "unseen_error": standard_error(after - self.before),
            "kept_loss": finite_mean(kept),
            "kept_loss_before": finite_mean(self.kept_before),
            "holdout": self.holdout,
            "altered": self.altered,
            "shrunk": self.shrunk,
        }
        if self.removed is None or self.judgement is None:
            return Audit(**figures)  # type: ignore[arg-type]
        judged, removed = self.judgement, audit_rows(predictor, w, self.removed)
        cost.forward_passes += len(self.removed)
        percentile = percentiles(removed.losses, after)
        figures |= {
            "removed": len(self.removed),
            "removed_loss": finite_mean(removed.losses),
            "expected_loss": finite_mean(judged.level),
            "membership_auc": 1 - float(percentile.mean()),
            "expected_auc": 1 - float(judged.percentile.mean()),
            "auc_error": standard_error(percentile - judged.percentile),
            "fit": judged.is_fit(self.before) or not self.holdout,
        }
        if predictor.family.name in ("categorical", "bernoulli"):
            # the judge is small: of what it would name, a better network names more
            better = max(1.0, unseen.accuracy / max(judged.unseen_accuracy, 1e-3))
            figures["still_named"] = removed.accuracy
            figures["expected_named"] = min(1.0, judged.removed_accuracy * better)
        return Audit(**figures)  # type: ignore[arg-type]


def finite_mean(values: Tensor) -> float | None:
    """The mean; None of nothing, or if it is not a finite number."""
    value = float(values.mean()) if len(values) else math.nan
    return value if math.isfinite(value) else None


def standard_error(values: Tensor) -> float | None:
    """The standard error of a mean."""
    value = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return value if math.isfinite(value) else None
