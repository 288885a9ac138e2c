"""Queries about versions, promotions and comparisons."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session, load_only

from core.errors import Conflict, Invalid, NotFound
from core.tables.models import Model
from core.tables.quality import DriftReport
from core.tables.versions import FIRST, Comparison, Promotion, Version, VersionKind, VersionState

IS_PURGED = Version.state == VersionState.PURGED
MAX_NUMBER = 2**31 - 1
"""The largest number that a version can have."""
Listed = TypeVar("Listed", Version, Promotion, Comparison)


def tip_of(session: Session, model: Model) -> Version | None:
    """The version that the next adaptation starts from."""
    return session.get(Version, (model.id, model.tip)) if model.tip else None


def champion_of(session: Session, model: Model) -> Version | None:
    """The version that serves predictions."""
    return session.get(Version, (model.id, model.champion)) if model.champion else None


def is_withdrawn(session: Session, model: Model) -> bool:
    """Whether a model is withdrawn: it has versions, but no tip, since its last training example was removed."""
    return model.tip is None and newest_number(session, model.id) > 0


def find_version(session: Session, model: Model, number: int) -> Version:
    """Find a version by its number; raises NotFound."""
    version = session.get(Version, (model.id, number))
    if version is None:
        raise NotFound("version_not_found", f"The model has no version {number}.")
    return version


def check_challenger(session: Session, model: Model, number: int | None) -> None:
    """Raise Invalid if a version cannot be the policy's challenger: it does not exist, or its weights are deleted."""
    if number is None:
        return
    version = session.get(Version, (model.id, number))
    if version is None or version.state is VersionState.PURGED:
        why = (
            f"the model has no version {number}" if version is None else f"the weights of version {number} are deleted"
        )
        raise Invalid.at(("policy", "challenger"), "policy_invalid", f"{why}; name a version that can predict, or null")


def newest_number(session: Session, model_id: int) -> int:
    """The number of a model's newest version; 0 if there is none."""
    return session.scalar(select(func.max(Version.number)).where(Version.model_id == model_id)) or 0


def first_served(session: Session, model_id: int, since: int = FIRST) -> Version | None:
    """The oldest version from the number `since` on that was promoted and is not purged."""
    served = (VersionState.SUPERSEDED, VersionState.CHAMPION)
    query = select(Version).where(Version.model_id == model_id, Version.number >= since, Version.state.in_(served))
    return session.scalar(query.order_by(Version.number).limit(1))


def last_trained(session: Session, model_id: int) -> Version | None:
    """The version trained from scratch with the highest position."""
    trained = select(Version).where(Version.model_id == model_id, Version.kind == VersionKind.TRAINED)
    return session.scalar(trained.order_by(Version.position.desc(), Version.number.desc()).limit(1))


def versions_of(session: Session, model_id: int) -> Sequence[Version]:
    """All versions of a model, ordered by number."""
    return session.scalars(select(Version).where(Version.model_id == model_id).order_by(Version.number)).all()


OUTLINE = (
    Version.number,
    Version.kind,
    Version.parent,
    Version.position,
    Version.removals_position,
    Version.state,
    Version.cost,
    Version.job_id,
    Version.created_at,
)


def outline_of(session: Session, model_id: int, metrics: bool = True) -> Sequence[Version]:
    """All versions of a model, ordered by number, with the columns that a history needs: the others are large.

    Versions that the session has already loaded keep all their columns.
    """
    columns = (*OUTLINE, Version.metrics) if metrics else OUTLINE
    versions = select(Version).where(Version.model_id == model_id).order_by(Version.number)
    return session.scalars(versions.options(load_only(*columns, raiseload=True))).all()


def newest_metrics(session: Session, model_id: int, metric: str, limit: int) -> list[float]:
    """A holdout metric of the last versions that were promoted, oldest first."""
    served = (VersionState.SUPERSEDED, VersionState.CHAMPION)
    ours = (Version.model_id == model_id, Version.state.in_(served))
    query = select(Version.metrics[metric].as_float()).where(*ours).order_by(Version.number.desc()).limit(limit)
    return [value for value in session.scalars(query) if value is not None][::-1]


def frozen_metrics(session: Session, model_id: int) -> dict[int, dict[str, float]]:
    """Metrics of the first version on the holdout of each later version, by number."""
    rows = session.execute(select(Version.number, Version.evaluation["frozen"]).where(Version.model_id == model_id))
    return {number: metrics for number, metrics in rows if metrics}


def comparisons_of(session: Session, model_id: int) -> Sequence[Comparison]:
    """All comparisons of a model, ordered by retrained version."""
    return session.scalars(
        select(Comparison).where(Comparison.model_id == model_id).order_by(Comparison.retrained)
    ).all()


def comparison_of(session: Session, version: Version) -> Comparison | None:
    """The latest comparison that an adapted or retrained version is part of."""
    either = Comparison.retrained if version.kind is VersionKind.TRAINED else Comparison.adapted
    same = select(Comparison).where(Comparison.model_id == version.model_id, either == version.number)
    return session.scalar(same.order_by(Comparison.id.desc()).limit(1))


def page_versions(session: Session, model_id: int, last: int, limit: int) -> Sequence[Version]:
    """A page of versions, newest first, starting at the number `last`."""
    return page_down(session, Version, Version.number, model_id, last, limit)


def page_promotions(session: Session, model_id: int, last: int, limit: int) -> Sequence[Promotion]:
    """A page of promotions, newest first, starting at the id `last`."""
    return page_down(session, Promotion, Promotion.id, model_id, last, limit)


def page_comparisons(session: Session, model_id: int, last: int, limit: int) -> Sequence[Comparison]:
    """A page of comparisons, newest first, starting at the id `last`."""
    return page_down(session, Comparison, Comparison.id, model_id, last, limit)


def page_down(
    session: Session, table: type[Listed], key: InstrumentedAttribute[int], model_id: int, last: int, limit: int
) -> Sequence[Listed]:
    """A page of a model's rows in a table, newest first, starting at the key `last`."""
    query = select(table).where(table.model_id == model_id, key <= last)
    return session.scalars(query.order_by(key.desc()).limit(limit)).all()


def first_promotion(session: Session, model_id: int) -> int | None:
    """The id of a model's first promotion."""
    return session.scalar(select(func.min(Promotion.id)).where(Promotion.model_id == model_id))


class ModelInService(NamedTuple):
    """A model, its champion and drift report, if any, and the outcome of the last comparison with a full retrain."""

    id: int
    name: str
    head: int
    train_count: int
    holdout_count: int
    quarantined_count: int
    held_at: datetime | None
    tolerance: float
    champion: Version | None
    within_tolerance: bool | None
    drift: DriftReport | None


def models_in_service(session: Session) -> list[ModelInService]:
    """All models with their champions."""
    newest = select(Comparison.within_tolerance).where(Comparison.model_id == Model.id)
    newest = newest.order_by(Comparison.id.desc()).limit(1)
    examples = (Model.train_count, Model.holdout_count, Model.quarantined_count)
    counts = (Model.id, Model.name, Model.head, *examples, Model.held_at)
    tolerance = Model.policy["tolerance"]["relative_bound"].as_float()
    champion = (Version.model_id == Model.id) & (Version.number == Model.champion)
    query = select(*counts, tolerance, Version, newest.scalar_subquery(), DriftReport)
    query = query.outerjoin(Version, champion).outerjoin(DriftReport, DriftReport.model_id == Model.id)
    slim = load_only(Version.number, Version.position, Version.created_at, Version.metrics, Version.certificate)
    return [ModelInService(*row) for row in session.execute(query.options(slim))]


def kept_versions(session: Session, model_id: int) -> Sequence[Version]:
    """The versions of a model that are not purged."""
    return session.scalars(select(Version).where(Version.model_id == model_id, ~IS_PURGED)).all()


def numbers_in_use(session: Session, model_id: int) -> list[int]:
    """Numbers of the versions that can serve predictions, newest first."""
    kept = select(Version.number).where(Version.model_id == model_id, ~IS_PURGED, Version.purge_at.is_(None))
    return list(session.scalars(kept.order_by(Version.number.desc())))


def purged_versions(session: Session, model_id: int) -> Sequence[Version]:
    """The purged versions of a model."""
    return session.scalars(select(Version).where(Version.model_id == model_id, IS_PURGED)).all()


def require_in_use(version: Version) -> None:
    """Raise Conflict if a version is purged, or kept only until the retention period after an erasure ends."""
    if version.state is VersionState.PURGED:
        raise Conflict("version_purged", f"Version {version.number} was purged. Its weights no longer exist.")
    if version.purge_at is not None:
        raise erased_conflict(version)


def erased_conflict(version: Version) -> Conflict:
    detail = f"Version {version.number} was trained on data of an erased person and is scheduled for deletion."
    return Conflict("version_erased", detail)
