"""`python -m service`: the REST service, on the address and with as many processes as the settings say."""

from __future__ import annotations

import gc
import os
import shutil
import sys

import uvicorn

from core.errors import AmendError
from core.metadata import secret_matches, subjects_match
from core.settings import from_environment
from core.versions import store_identity
from core.versions.orphans import sweep
from core.versions.store import Store
from migrations.runner import open_database


def main() -> None:
    os.umask(0o077)  # what is written here is for its owner alone
    settings = from_environment()
    database = open_database(settings)
    with database.write() as session:
        if not secret_matches(session, settings.secret):
            sys.exit("AMEND_SECRET_KEY is not the one that this database was made with: no subject would be found.")
        if not subjects_match(session, settings.caseless_subjects):
            sys.exit("AMEND_CASELESS_SUBJECTS is not as it was when the first subjects came: some would not be found.")
    store = Store(settings.artifacts)
    store_identity.begin(database, store)
    sweep(database, store)
    database.close()
    if settings.processes > 1:
        # where prometheus_client adds up the counts of the processes; those of the last run are of no use
        folder = settings.folder / f"metrics-{settings.port}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    gc.disable()  # looking for garbage while modules are loaded takes half a second; the application turns it on
    uvicorn.run(
        "service.app:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.processes,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here asks who is behind a proxy
        http="service.http.protocol:LimitedProtocol",
        ws="none",
        timeout_graceful_shutdown=10,
    )


if __name__ == "__main__":
    try:
        main()
    except AmendError as error:
        sys.exit(error.detail)
