"""The audit of a network, for which no bound exists.

The new network is compared with the old one, as if nothing had been done: judged by its losses, has it forgotten the
removed rows, and is it no worse on rows that neither network has seen? Nothing here reads all the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from core.kprior.certificate.audit import Audit
from core.kprior.data.examples import Examples
from core.kprior.model.families import classes_of
from core.kprior.model.predictor import Predictor
from core.kprior.objective.forgetting import forgetting_levels, percentiles, uninformed_loss
from core.kprior.passes.cost import Cost
from core.kprior.passes.row_losses import audit_rows, fraction_true

MIN_GONE_CLASS_LOSS = 3.0
"""The smallest loss of a row whose class has no row left; it corresponds to a probability of 5 %."""


@dataclass(frozen=True)
class Judgement:
    """Predictions of the judge, a network that never saw the removed rows, for these rows."""

    percentile: Tensor
    """(r,) percentile of the loss of each removed row among those of unseen rows."""
    removed_accuracy: float
    """The fraction of removed rows whose label the judge predicts."""
    unseen_accuracy: float
    """The same for unseen rows."""
    level: Tensor
    """(r,) the smallest loss that each removed row should have."""
    loss: float
    """Mean loss of the judge on unseen rows."""
    uninformed: float
    """Mean loss of a constant prediction, the mean of the targets."""
    lost: Tensor | None
    """(K,) which classes have no row left."""
    ranked_first: float | None
    """As in `Audit`."""

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
        """`known` are the old network's losses on the unseen rows, if it had not seen them; otherwise the judge's are
        used.

        `lost` says which classes have no row left: their rows are surprising, and no network should predict their
        label.
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
        ranked = ranked_first(predictor, w, removed, unseen, lost)
        return cls(percentile, hits, fresh.accuracy, level, float(mine.mean()), uninformed, lost, ranked)

    def is_fit(self, before: Tensor) -> bool:
        """Whether the judge is accurate enough: at least half as good on unseen rows as the old network."""
        old = float(before.mean())
        return self.loss <= max(1.1 * old, (old + self.uninformed) / 2)


@dataclass(frozen=True)
class Yardstick:
    """What a network is compared with: the old network, and the judge."""

    unseen: Examples
    before: Tensor
    """(n,) the old network's losses on the unseen rows."""
    kept: Examples
    kept_before: Tensor
    removed: Examples | None
    judgement: Judgement | None
    holdout: bool
    altered: bool
    shrunk: float

    def measure(self, predictor: Predictor, w: Tensor, cost: Cost) -> Audit:
        """Audit a network."""
        unseen, kept = audit_rows(predictor, w, self.unseen), audit_rows(predictor, w, self.kept).losses
        after = unseen.losses
        cost.forward_passes += len(self.unseen) + len(self.kept)
        figures = {
            "visits": cost.backward_passes,
            "unseen": len(self.unseen),
            "unseen_loss": finite_mean(after),
            "unseen_loss_before": finite_mean(self.before),
            "unseen_error": standard_error(after - self.before),
            "retained_loss": finite_mean(kept),
            "retained_loss_before": finite_mean(self.kept_before),
            "holdout": self.holdout,
            "altered": self.altered,
            "shrunk": self.shrunk,
        }
        if self.removed is None or self.judgement is None:
            return Audit(**figures)  # type: ignore[arg-type]
        judged, removed = self.judgement, audit_rows(predictor, w, self.removed)
        cost.forward_passes += len(self.removed)
        percentile = percentiles(removed.losses, after)
        capped, level = (each.cpu().clamp(max=judged.uninformed) for each in (removed.losses, judged.level))
        figures |= {
            "removed": len(self.removed),
            "removed_loss": finite_mean(removed.losses),
            "expected_loss": finite_mean(judged.level),
            "capped_loss": finite_mean(capped),
            "expected_capped_loss": finite_mean(level),
            "capped_loss_error": standard_error(level - capped),
            "membership_auc": 1 - float(percentile.mean()),
            "expected_auc": 1 - float(judged.percentile.mean()),
            "auc_error": standard_error(percentile - judged.percentile),
            "fit": judged.is_fit(self.before) or not self.holdout,
            "ranked_first": ranked_first(predictor, w, self.removed, self.unseen, judged.lost),
            "expected_ranked_first": judged.ranked_first,
        }
        if predictor.family.name in ("categorical", "bernoulli"):
            # The judge is small; a better network predicts more labels correctly.
            better = max(1.0, unseen.accuracy / max(judged.unseen_accuracy, 1e-3))
            figures["forgotten_label_rate"] = removed.accuracy
            figures["expected_label_rate"] = min(1.0, judged.removed_accuracy * better)
        return Audit(**figures)  # type: ignore[arg-type]


def ranked_first(
    predictor: Predictor, w: Tensor, removed: Examples, unseen: Examples, lost: Tensor | None
) -> float | None:
    """How often the output of a lost class, relative to the mean output, is larger for its removed rows than for unseen
    ones; None if no class is lost."""
    if lost is None or not bool(lost.any()) or predictor.family.name != "categorical":
        return None
    label = classes_of(removed.y).cpu()
    found, count = 0.0, 0
    others = predictor.outputs(w, unseen.x)
    for k in lost.nonzero()[:, 0].tolist():
        rows = removed.take(label == k)
        if len(rows) == 0:
            continue
        ours = predictor.outputs(w, rows.x)
        above = percentiles((ours[:, k] - ours.mean(1)).double().cpu(), (others[:, k] - others.mean(1)).double().cpu())
        found, count = found + float(above.sum()), count + len(rows)
    return found / count if count and math.isfinite(found) else None


def finite_mean(values: Tensor) -> float | None:
    """The mean; None if there are no values, or if it is not finite."""
    value = float(values.mean()) if len(values) else math.nan
    return value if math.isfinite(value) else None


def standard_error(values: Tensor) -> float | None:
    """The standard error of a mean."""
    value = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return value if math.isfinite(value) else None
