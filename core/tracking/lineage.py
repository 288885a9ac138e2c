"""All that is known of a model when MLflow is told about it: its versions, and the retrains they stand in for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session

from core.database import Database
from core.jobs.queries import retrain_ids
from core.kprior.model.spec import Spec
from core.ledger.specs import spec_at
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.versions.queries import comparisons_of, outline_of, versions_of


@dataclass(frozen=True)
class Lineage:
    """A model with its past, up to the version that is told about."""

    model: Model
    versions: Sequence[Version]
    """In the order of their numbers."""
    comparisons: Sequence[Comparison]
    """In the order of their retrains."""
    retrains: frozenset[str]
    """Ids of the jobs that were asked for a full retrain."""
    spec: Spec
    """As it is now."""

    @classmethod
    def of(cls, database: Database, model_id: int) -> Lineage | None:
        """As the database has it now; None if the model is deleted."""
        with database.read() as session:
            model = session.get(Model, model_id)
            if model is None:
                return None
            versions, comparisons = versions_of(session, model_id), comparisons_of(session, model_id)
            retrains = retrain_ids(session, model_id)
            return cls(model, versions, comparisons, retrains, spec_at(session, model.id, model.spec, model.head))

    @classmethod
    def outline(cls, session: Session, model: Model) -> Lineage:
        """As the database has it now, each version in outline."""
        versions, comparisons = outline_of(session, model.id), comparisons_of(session, model.id)
        spec = spec_at(session, model.id, model.spec, model.head)
        return cls(model, versions, comparisons, retrain_ids(session, model.id), spec)

    def until(self, number: int) -> Lineage:
        """The lineage as it was when a version had just been made: the same, whenever it is told."""
        versions = [v for v in self.versions if v.number <= number]
        comparisons = [c for c in self.comparisons if max(c.adapted, c.retrained) <= number]
        return Lineage(self.model, versions, comparisons, self.retrains, self.spec)

    @cached_property
    def by_number(self) -> dict[int, Version]:
        return {version.number: version for version in self.versions}

    @cached_property
    def line(self) -> list[Version]:
        """The versions that followed each other: the first, then adapted ones, or trained in their place.

        Retrains are among them only if they took over: the adapted version was not within tolerance, and no better.
        """
        made: list[Version] = []
        for version in self.versions:
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
        """Versions trained from scratch, for whatever reason."""
        return [v for v in self.versions if v.kind is VersionKind.TRAINED]

    def retrain_of(self, version: Version) -> Version | None:
        """The full training whose cost is nearest to what a retrain in a version's place would have cost."""
        before = [t for t in self.trained if t.number <= version.number]
        return before[-1] if before else None

    def total_cost(self, what: str) -> float:
        """What the versions in service cost altogether, e.g. seconds."""
        return float(sum(v.cost.get(what, 0) for v in self.line))

    def retrain_cost(self, what: str) -> float:
        """About what they would have cost, had each been a full retrain."""
        return float(sum(t.cost.get(what, 0) for v in self.line if (t := self.retrain_of(v)) is not None))

    @cached_property
    def saving(self) -> tuple[float, float] | None:
        """Seconds that the updates after the first training took, and about what full retrains would have."""
        if len(self.line) < 2:
            return None
        first = self.until(self.line[0].number)
        spent = self.total_cost("seconds") - first.total_cost("seconds")
        return spent, self.retrain_cost("seconds") - first.retrain_cost("seconds")

    @property
    def champion(self) -> Version | None:
        return self.by_number.get(self.model.champion or 0)

    @property
    def challenger(self) -> Version | None:
        """The newest candidate after the champion that was not made to compare with."""
        after = self.model.champion or 0
        found = [v for v in self.line if v.state is VersionState.CANDIDATE and v.number > after]
        return found[-1] if found else None

    @property
    def reference(self) -> Version | None:
        """The newest full training whose weights are still there."""
        found = [v for v in self.trained if v.state is not VersionState.PURGED]
        return found[-1] if found else None

    def comparison_of(self, version: Version) -> Comparison | None:
        """The comparison that a version is part of, on either side."""
        found = [c for c in self.comparisons if version.number in (c.adapted, c.retrained)]
        return found[-1] if found else None


def has_taken_over(comparison: Comparison) -> bool:
    """Whether adaptations went on from the retrained version."""
    return bool(comparison.figures.get("took_over", not comparison.within_tolerance))


def main_metric(metrics: Mapping[str, float]) -> str | None:
    """The metric that says most: accuracy of classes, rmse of numbers."""
    return next((name for name in ("accuracy", "rmse", "loss") if isinstance(metrics.get(name), (int, float))), None)
