"""Purging versions: their weights and metrics are deleted, and only an entry in the history remains."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.clock import now
from core.tables.bookkeeping import OrphanFile
from core.tables.documents import TrialDocument
from core.tables.ledger import PendingExample, RecordedPrediction
from core.tables.versions import Version, VersionState
from core.versions.privacy_rounding import significant


def purge_version(session: Session, version: Version) -> None:
    """Purge a version; only its entry in the history remains."""
    version.state, version.purge_at = VersionState.PURGED, None
    drop_figures(version)
    drop_predictions(session, version)
    session.merge(OrphanFile(path=version.file))


def drop_predictions(session: Session, version: Version) -> None:
    """Delete the recorded predictions of a version for examples that are not evaluated yet."""
    for table in (PendingExample, RecordedPrediction):
        ours = table.model_id == version.model_id
        made = update(table).where(ours, table.version == version.number)
        session.execute(made.values(version=None, mean=None))
        made = update(table).where(ours, table.challenger == version.number)
        session.execute(made.values(challenger=None, challenger_mean=None))


def drop_figures(version: Version) -> None:
    """Delete a version's metrics and certificate, and the hash of its file, which would confirm a correct guess.

    Its cost is kept for planning, rounded to one digit because exact values depend on every example.
    """
    version.sha256 = ""
    cost = version.cost
    version.cost = {
        "backward_passes": significant(float(cost["backward_passes"]), 1),
        "data_passes": significant(float(cost["data_passes"]), 1),
        "seconds": significant(cost["seconds"], 1),
    }
    trials = version.evaluation.get("trials", []) if version.evaluation else []
    tried: list[TrialDocument] = [{**found, "objection": ""} for found in trials]
    version.metrics, version.certificate, version.gate = {}, None, None
    version.evaluation = {"trials": tried} if tried else None


def versions_due_for_purge(session: Session, model_id: int) -> list[Version]:
    """Versions whose retention period after an erasure has ended."""
    due = (Version.model_id == model_id, Version.purge_at <= now(), Version.state != VersionState.PURGED)
    return list(session.scalars(select(Version).where(*due)))
