"""`python -m service`: the REST service, on the address and with as many processes as the settings say."""

from __future__ import annotations

import os
import sys
import tempfile

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from core.database import Database
from core.settings import Settings
from migrations import runner


def schema_problem(settings: Settings) -> str | None:
    """What is wrong with the database's schema, in words for an operator."""
    database = Database(settings)
    try:
        current, newest = runner.current(database), runner.newest()
    except SQLAlchemyError as error:
        return f"The database does not answer ({type(error).__name__}): {database.engine.url!r}"
    finally:
        database.close()
    if current == newest:
        return None
    if current is None or runner.is_known(current):
        return "The database is not up to date. Run: amend migrate"
    return f"The database is newer ({current}) than this version of Amend knows ({newest}). Update Amend."


def main() -> None:
    settings = Settings()
    if problem := schema_problem(settings):
        sys.exit(problem)
    assert settings.secret  # made before several processes need it at once
    with tempfile.TemporaryDirectory(prefix="amend-metrics-") as folder:
        if settings.processes > 1:
            # read by prometheus_client in each process
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        uvicorn.run(
            "service.app:create_app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.processes,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=30,
        )


if __name__ == "__main__":
    main()
