"""``python -m amend.up.tracking [FOLDER PORT]``: MLflow's server, behind a password.

With a folder its database is there, and never half-made; else it is what MLflow's own settings say (MLFLOW_...).

MLflow's own migrations cannot be repeated after they were killed: it would never start again. So they are run on a
copy, which takes the place of the database when it is finished.

MLflow would start its server as another process, and wait for it. That loads all its modules twice: four seconds, and a
quarter of a gigabyte. So the server runs here.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from amend.up.assistant import QuietAssistant
from amend.up.authentication import Application, BasicAuthentication
from amend.up.stack import read_setting

LOOPBACK = "127.0.0.1"
SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
DROPPED_VARIABLES = ("MLFLOW_GUNICORN_OPTS", "MLFLOW_STATIC_PREFIX", "MLFLOW_EXPOSE_PROMETHEUS")
"""Settings for other ways to run MLflow's server."""


def main(place: str = "", port: str = "") -> None:
    if not password():
        raise SystemExit("AMEND_MLFLOW_PASSWORD: MLflow is not served without a password")
    for name in DROPPED_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(SETTINGS)
    gc.disable()  # looking for garbage while modules are loaded takes half a second
    # not above: it takes seconds, and tests of docstrings import all modules
    import uvicorn.main  # noqa: F401  first: MLflow's server is on its guard where it sees who will serve it
    from mlflow import server
    from mlflow.cli import cli

    server._exec_cmd = serve  # type: ignore[attr-defined, assignment]
    options = []
    if place:
        folder = Path(place)
        database = folder / "mlflow.db"
        migrate_database(database, cli)
        options = ["--host", LOOPBACK, "--port", port, "--workers", "1", "--backend-store-uri", url_of(database)]
        options += ["--artifacts-destination", (folder / "artifacts").as_uri()]
    cli(["server", *options])


def serve(command: list[str], extra_env: dict[str, str], **_: Any) -> None:
    """Do what a command says that runs uvicorn, but with our application, until we are told to stop."""
    from uvicorn.main import main as uvicorn

    os.environ.update(extra_env)
    gc.freeze()
    gc.enable()
    uvicorn([*command[command.index("uvicorn") + 1 : -1], "--factory", "amend.up.tracking:app"])


def app() -> Application:
    from mlflow.server.fastapi_app import app

    return BasicAuthentication(QuietAssistant(app), password())


def password() -> str:
    return read_setting("mlflow_password")


def migrate_database(database: Path, mlflow: Callable[..., object]) -> None:
    """See to it that there is a database, with the schema of this MLflow; ``mlflow``: its command."""
    mark, copy = database.with_suffix(".version"), database.with_name("unfinished.db")
    if database.exists() and mark.exists() and mark.read_text() == version("mlflow"):
        return
    for path in database.parent.glob(f"{copy.name}*"):
        path.unlink()
    if database.exists():
        with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(copy)) as new:
            old.backup(new)
    mlflow(["db", "upgrade", url_of(copy)], standalone_mode=False)
    os.replace(copy, database)
    mark.write_text(version("mlflow"))


def url_of(database: Path) -> str:
    return f"sqlite:///{quote(str(database))}"


if __name__ == "__main__":
    main(*sys.argv[1:])
