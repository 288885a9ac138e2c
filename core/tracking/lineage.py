"""The history of a model for publication: its versions, comparisons and retrains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sqlalchemy.orm import Session

from core.database import Database
from core.jobs.queries import retrain_ids
from core.kprior.model.spec import Spec
from core.ledger.spec_history import spec_at
from core.models.policy import policy_of
from core.quality.queries import outline_windows
from core.tables.models import Model
from core.tables.quality import QualityWindow
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.versions.privacy_rounding import significant
from core.versions.queries import comparisons_of, outline_of, versions_of

CostName = Literal["seconds", "backward_passes"]
RARE = 0.1
"""Share of the holdout below which a class is rare."""
COSTS: tuple[CostName, ...] = ("seconds", "backward_passes")


@dataclass(frozen=True)
class Lineage:
    """A model with its history up to a version."""

    model: Model
    versions: Sequence[Version]
    """In the order of their numbers."""
    comparisons: Sequence[Comparison]
    """In the order of their retrains."""
    retrains: frozenset[str]
    """Ids of the jobs that were full retrains."""
    spec: Spec
    """The current spec."""
    windows: Sequence[QualityWindow] = ()
    """Test-then-train windows, without the predictions row by row."""

    @classmethod
    def of(cls, database: Database, model_id: int) -> Lineage | None:
        """The current lineage; None if the model is deleted."""
        with database.read() as session:
            model = session.get(Model, model_id)
            if model is None:
                return None
            versions, comparisons = versions_of(session, model_id), comparisons_of(session, model_id)
            retrains = retrain_ids(session, model_id)
            spec = spec_at(session, model.id, model.spec, model.head)
            return cls(model, versions, comparisons, retrains, spec, outline_windows(session, model_id))

    @classmethod
    def outline(cls, session: Session, model: Model, metrics: bool = True) -> Lineage:
        """The current lineage, with the outlines of versions, with or without their metrics."""
        versions, comparisons = outline_of(session, model.id, metrics), comparisons_of(session, model.id)
        spec = spec_at(session, model.id, model.spec, model.head)
        return cls(model, versions, comparisons, retrain_ids(session, model.id), spec)

    def until(self, number: int) -> Lineage:
        """The lineage as it was when a version had just been created, whenever it is published."""
        versions = [v for v in self.versions if v.number <= number]
        comparisons = [c for c in self.comparisons if max(c.adapted, c.retrained) <= number]
        return Lineage(self.model, versions, comparisons, self.retrains, self.spec, self.windows)

    @cached_property
    def by_number(self) -> dict[int, Version]:
        return {version.number: version for version in self.versions}

    @cached_property
    def line(self) -> list[Version]:
        """The versions that followed each other: the first, then adapted ones, or ones trained in their place.

        Retrains are included only if they took over because the adapted version was outside tolerance and no better.
        Versions that the promotion gate rejected are not included.
        """
        made: list[Version] = []
        for version in self.versions:
            if version.state is VersionState.REJECTED:
                continue
            asked = version.kind is VersionKind.TRAINED and (version.job_id is None or version.job_id in self.retrains)
            if asked and made:
                comparison = self.comparison_of(version)
                if made[-1].position == version.position if comparison is None else not has_taken_over(comparison):
                    continue
            made.append(version)
        return made

    def serves(self, version: Version) -> bool:
        return version in self.line

    @cached_property
    def trained(self) -> list[Version]:
        """All versions trained from scratch."""
        return [v for v in self.versions if v.kind is VersionKind.TRAINED]

    def retrain_of(self, version: Version) -> Version | None:
        """The full training whose cost best estimates that of a retrain in place of a version."""
        before = [t for t in self.trained if t.number <= version.number]
        return before[-1] if before else None

    @staticmethod
    def cost_of(version: Version, what: CostName) -> float:
        """The cost of a version. Counts are rounded: exact ones depend on every example, and MLflow keeps them."""
        cost = float(version.cost[what])
        return cost if what == "seconds" else significant(cost, 1)

    def total_cost(self, what: CostName) -> float:
        """The total cost of the versions in service, for example in seconds."""
        return sum(self.cost_of(v, what) for v in self.line)

    def retrain_cost(self, what: CostName) -> float:
        """The estimated total cost if each of them had been a full retrain."""
        return sum(self.cost_of(t, what) for v in self.line if (t := self.retrain_of(v)) is not None)

    @cached_property
    def saving(self) -> tuple[float, float] | None:
        """Seconds that the updates after the first training took, and an estimate for full retrains instead."""
        if len(self.line) < 2:
            return None
        first = self.until(self.line[0].number)
        spent = self.total_cost("seconds") - first.total_cost("seconds")
        return spent, self.retrain_cost("seconds") - first.retrain_cost("seconds")

    def headline(self, metrics: Mapping[str, float]) -> str | None:
        """The metric to show first."""
        return main_metric(metrics, policy_of(self.model).headline)

    @property
    def champion(self) -> Version | None:
        return self.by_number.get(self.model.champion or 0)

    @property
    def challenger(self) -> Version | None:
        """The newest candidate after the champion that was not created for comparison."""
        after = self.model.champion or 0
        found = [v for v in self.line if v.state is VersionState.CANDIDATE and v.number > after]
        return found[-1] if found else None

    @property
    def reference(self) -> Version | None:
        """The newest full training whose weights still exist."""
        found = [v for v in self.trained if v.state is not VersionState.PURGED]
        return found[-1] if found else None

    def comparison_of(self, version: Version) -> Comparison | None:
        """The comparison that includes a version, on either side."""
        found = [c for c in self.comparisons if version.number in (c.adapted, c.retrained)]
        return found[-1] if found else None


def has_taken_over(comparison: Comparison) -> bool:
    """Whether later adaptations start from the retrained version."""
    return bool(comparison.result.get("took_over", not comparison.within_tolerance))


def main_metric(metrics: Mapping[str, float], wanted: str | None = None) -> str | None:
    """The metric to show first: the policy's `headline`, or the most informative one.

    Accuracy for classes, but average precision if one of two classes is rare: then predicting the other class is
    accurate as well. Average precision also for targets of several labels, and RMSE for numbers.

    >>> main_metric({"accuracy": 0.997, "average_precision": 0.62, "baseline_average_precision": 0.003})
    'average_precision'
    >>> main_metric({"accuracy": 0.91, "average_precision": 0.9, "baseline_average_precision": 0.5}, "auc")
    'accuracy'
    """
    positive = metrics.get("baseline_average_precision")
    rare = positive is not None and min(positive, 1 - positive) < RARE
    labels = any("/" in name for name in metrics)  # metrics of single labels
    names = (wanted, "average_precision" if rare or labels else None, "accuracy", "rmse", "loss")
    return next((name for name in names if name and isinstance(metrics.get(name), (int, float))), None)
