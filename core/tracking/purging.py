"""Deletes the weights of purged versions from MLflow for good. Called after they were purged in the database.

As in `publisher`, MLflow is imported only when there is something to do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core import clock, mutex
from core.database import Database
from core.errors import AmendError, NotFound, Unavailable
from core.tables.versions import Version, VersionState
from core.tracking.lineage import Lineage
from core.tracking.publisher import ENVIRONMENT, MUTEX, PURGE_MUTEX, MutexKeeper, MutexLost, require

if TYPE_CHECKING:
    from core.tracking.gateway import Gateway

MUTEX_WAIT_SECONDS = 120.0
"""How long a purge waits for another process that is publishing."""
POLL_SECONDS = 0.5


def purge(
    database: Database, url: str, owner: str, model_id: int, numbers: Sequence[int], lost: bool = False
) -> dict[str, int]:
    """Delete the weights of purged versions from MLflow and verify that they are gone; returns how much there was.

    With `lost`, also those of versions that the database lost when it was restored from a backup. Raises Unavailable if
    MLflow does not respond or another process keeps publishing, and Conflict if MLflow keeps data. Calling it again
    completes the work. Nothing is published meanwhile, and purged versions are never uploaded afterwards.
    """
    gone = Counter(versions=0, models=0, files=0)
    with without_publishers(database, f"{owner}, purging") as hold:
        lineage = Lineage.of(database, model_id)
        if lineage is None:
            raise NotFound("model_not_found", "This model does not exist.")
        versions = [lineage.by_number[number] for number in numbers]
        if any(version.state is not VersionState.PURGED for version in versions):
            raise ValueError("A version that is not in the state `purged` would be uploaded again.")
        # a publisher that was killed may have uploaded a version without recording it
        published = any((version.mlflow or {}).get("version") or version.mlflow_folder for version in versions)
        if published or (url and (versions or lost)):
            delete_weights(database, url, hold, lineage, versions, lost, gone)
    return dict(gone)


@contextmanager
def without_publishers(database: Database, owner: str) -> Iterator[MutexKeeper]:
    """Keep publishers away: one that is at work stops after its event. Raises Unavailable if it does not in time."""
    hold, end = MutexKeeper(database, owner), clock.monotonic() + MUTEX_WAIT_SECONDS
    mutex.acquire(database, PURGE_MUTEX, owner, 2 * MUTEX_WAIT_SECONDS)  # if another purge holds it, so much the better
    busy = Unavailable("mlflow_busy", "Another MLflow synchronisation is in progress; try again later.")
    try:
        while True:
            try:
                hold(at_once=True)
                break
            except MutexLost:
                if clock.monotonic() > end:
                    raise
            clock.sleep(POLL_SECONDS)
        yield hold
    except MutexLost:
        raise busy from None
    finally:
        mutex.release(database, MUTEX, owner)
        mutex.release(database, PURGE_MUTEX, owner)


def delete_weights(
    database: Database,
    url: str,
    hold: MutexKeeper,
    lineage: Lineage,
    versions: Sequence[Version],
    lost: bool,
    gone: Counter[str],
) -> None:
    """Delete the weights of versions, and count in `gone` what there was."""
    require(url)
    os.environ.update(ENVIRONMENT)
    from core.tracking import artifacts, gateway, registered_model

    try:
        mlflow = gateway.Gateway(url, hold)
        # first, so that loading by an alias always works, even if somebody deleted a version by hand
        gateway.none_if_missing(registered_model.set_aliases, mlflow, lineage)
        gone.update(delete_versions(database, mlflow, lineage, versions))
        if lost:
            gone.update(artifacts.delete_lost(mlflow, lineage))
    except (AmendError, MutexLost):
        raise
    except Exception as error:
        if gateway.is_unavailable(error):
            message = f"{gateway.describe_error(error)} Try again later."
            raise Unavailable("mlflow_unavailable", message) from error
        require(url)
        raise


def delete_versions(database: Database, mlflow: Gateway, lineage: Lineage, versions: Sequence[Version]) -> Counter[str]:
    """Delete the weights of versions and verify that they are gone; returns how much there was, by kind."""
    from core.tracking import artifacts

    gone = Counter[str]()
    for version in versions:
        gone.update(artifacts.delete(mlflow, lineage.model, version.number))
        gone.update(artifacts.delete_noted(mlflow, lineage.model, version))
        forget_registration(database, version)
    return gone


def forget_registration(database: Database, version: Version) -> None:
    """Delete the recorded number and folder of a version in MLflow; its run is kept."""
    with database.write() as session:
        row = session.get(Version, (version.model_id, version.number))
        if row is not None:
            row.mlflow = {**row.mlflow, "version": None} if row.mlflow else {}
            row.mlflow_folder = None
