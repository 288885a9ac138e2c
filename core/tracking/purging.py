"""Making MLflow forget the weights of versions for good. Called by whoever has purged them here.

As in `publisher`, MLflow's own code is imported only when there is something to do.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from core import mutex
from core.database import Database
from core.errors import AmendError, NotFound, Unavailable
from core.tables.versions import Version, VersionState
from core.tracking.lineage import Lineage
from core.tracking.publisher import ENVIRONMENT, MUTEX, MutexKeeper, MutexLost, require

MUTEX_WAIT_SECONDS = 120.0
"""How long a purge waits for another process that is publishing."""
POLL_SECONDS = 0.5


def purge(
    database: Database, url: str, owner: str, model_id: int, numbers: Sequence[int], lost: bool = False
) -> dict[str, int]:
    """Delete the weights of purged versions from MLflow, look whether they are gone, and tell how much there was.

    With `lost` also those of versions that the database has lost, being restored from a backup.
    Unavailable if MLflow does not answer, or is told something else all the time; Conflict if it keeps something.
    What is half-done then is done by calling again. Nobody publishes meanwhile, and afterwards nobody uploads them.
    """
    gone = Counter(versions=0, models=0, files=0)
    with without_publishers(database, f"{owner}, purging") as hold:
        lineage = Lineage.of(database, model_id)
        if lineage is None:
            raise NotFound("model_not_found", "There is no such model.")
        versions = [lineage.by_number[number] for number in numbers]
        if any(version.state is not VersionState.PURGED for version in versions):
            raise ValueError("a version that is not in the state `purged` would be uploaded again")
        # one that is not noted as told may have been uploaded by somebody who was killed before noting it
        published = any((version.mlflow or {}).get("version") or version.mlflow_folder for version in versions)
        if published or (url and (versions or lost)):
            delete_weights(database, url, hold, lineage, versions, lost, gone)
    return dict(gone)


@contextmanager
def without_publishers(database: Database, owner: str) -> Iterator[MutexKeeper]:
    """Keep publishers away; Unavailable if one does not finish in time."""
    hold, end = MutexKeeper(database, owner), time.monotonic() + MUTEX_WAIT_SECONDS
    busy = Unavailable("mlflow_busy", "MLflow is being told something else; try again later.")
    try:
        while True:
            try:
                hold(at_once=True)
                break
            except MutexLost:
                if time.monotonic() > end:
                    raise
            time.sleep(POLL_SECONDS)
        yield hold
    except MutexLost:
        raise busy from None
    finally:
        mutex.release(database, MUTEX, owner)


def delete_weights(
    database: Database,
    url: str,
    hold: MutexKeeper,
    lineage: Lineage,
    versions: Sequence[Version],
    lost: bool,
    gone: Counter[str],
) -> None:
    """Delete the weights of some versions, and count in `gone` what there was."""
    require(url)
    os.environ.update(ENVIRONMENT)
    from core.tracking import artifacts, mlflow_client, registry

    try:
        client = mlflow_client.Client(url, hold)
        # first, so that loading by an alias works all the time; a version that somebody deleted by hand is no obstacle
        mlflow_client.none_if_missing(registry.set_aliases, client, lineage)
        for version in versions:
            gone.update(artifacts.delete(client, url, lineage.model, version.number))
            gone.update(artifacts.delete_noted(client, url, lineage.model, version))
            unnote(database, version)
        if lost:
            gone.update(artifacts.delete_lost(client, url, lineage))
    except (AmendError, MutexLost):
        raise
    except Exception as error:
        if mlflow_client.is_unanswered(error):
            message = f"{mlflow_client.describe_error(error)} Try again later."
            raise Unavailable("mlflow_unavailable", message) from error
        require(url)
        raise


def unnote(database: Database, version: Version) -> None:
    """Forget under which number a version was registered; its run is still there. Of one never told: that we looked."""
    with database.write() as session:
        row = session.get(Version, (version.model_id, version.number))
        if row is not None:
            row.mlflow = {**row.mlflow, "version": None} if row.mlflow else {}
            row.mlflow_folder = None
