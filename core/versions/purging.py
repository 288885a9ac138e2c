"""Purging versions: an erasure deletes weights and metrics, the policy's retention only the weights."""

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.tables.bookkeeping import OrphanFile
from core.tables.ledger import PendingExample, RecordedPrediction
from core.tables.versions import Version, VersionState
from core.versions.privacy_rounding import significant


def purge_version(session: Session, version: Version) -> None:
    """Purge a version for an erasure; only its entry in the history remains."""
    purge_weights(session, version)
    version.purge_at = None
    drop_figures(version)
    drop_predictions(session, version)


def purge_weights(session: Session, version: Version) -> None:
    """Purge a version, but keep its metrics and recorded predictions. The file is deleted after the commit."""
    version.state, version.salt = VersionState.PURGED, None
    session.merge(OrphanFile(path=version.file))


def has_figures() -> ColumnElement[bool]:
    """Condition on versions whose weights or metrics still exist."""
    return or_(Version.state != VersionState.PURGED, Version.sha256 != "")


def may_be_in_mlflow(version: Version) -> bool:
    """Whether MLflow may have data of a purged version.

    A publisher that was killed may have uploaded a version without recording it.
    """
    return version.mlflow is None or bool(version.mlflow.get("version") or version.mlflow_folder)


def drop_predictions(session: Session, version: Version) -> None:
    """Delete the recorded predictions of a version for examples that are not evaluated yet."""
    for table in (PendingExample, RecordedPrediction):
        ours = table.model_id == version.model_id
        made = update(table).where(ours, table.version == version.number)
        session.execute(made.values(version=None, mean=None))
        made = update(table).where(ours, table.challenger == version.number)
        session.execute(made.values(challenger=None, challenger_mean=None))


def drop_figures(version: Version) -> None:
    """Delete everything that was computed from a version's examples: metrics, certificate, size of the memory, cost,
    and the hashes of its file and of its examples, which would confirm a correct guess. The rounded duration is kept.
    """
    version.sha256 = version.dataset_digest = ""
    version.salt = None
    version.cost = {"backward_passes": 0, "data_passes": 0, "seconds": significant(version.cost["seconds"], 1)}
    version.memory = {"size": 0, "fraction": 0.0}
    version.metrics, version.certificate, version.gate, version.evaluation = {}, None, None, None


def versions_due_for_purge(session: Session, model_id: int) -> list[Version]:
    """Versions whose retention period after an erasure has ended."""
    due = (Version.model_id == model_id, Version.purge_at <= now(), Version.state != VersionState.PURGED)
    return list(session.scalars(select(Version).where(*due)))
