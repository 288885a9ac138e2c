"""`python -m service`: the REST service, on the address and with as many processes as the settings say."""

from __future__ import annotations

import os
import shutil
import sys

import uvicorn

from core.database import Database
from core.settings import Settings
from migrations import runner


def main() -> None:
    settings = Settings()
    database = Database(settings)
    if problem := runner.problem(database):
        sys.exit(problem)
    database.close()
    assert settings.secret  # made before several processes need it at once
    if settings.processes > 1:
        # where prometheus_client adds up the counts of the processes; those of the last run are of no use
        folder = settings.folder / f"metrics-{settings.port}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
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
        timeout_graceful_shutdown=30,
    )


if __name__ == "__main__":
    main()
