"""``python -m amend.up.mlflow_server [FOLDER PORT]``: MLflow's server, protected by a password.

With a folder, its database and artifacts are there; otherwise MLflow's own settings apply (MLFLOW_...).

If a migration of MLflow is killed, it cannot be repeated, and MLflow would never start again. Therefore migrations run
on a copy, which replaces the database when they have finished.

MLflow would start its server as a second process. That loads all modules twice, which takes four seconds and 250 MB, so
the server runs in this process instead.
"""

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

from amend.up.mlflow_assistant import QuietAssistant
from amend.up.mlflow_authentication import Application, BasicAuthentication
from amend.up.stack import LOOPBACK, read_setting

SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
DROPPED_VARIABLES = ("MLFLOW_GUNICORN_OPTS", "MLFLOW_STATIC_PREFIX", "MLFLOW_EXPOSE_PROMETHEUS")
"""Settings that do not apply to this way of running MLflow's server."""


def main(place: str = "", port: str = "") -> None:
    if not password():
        raise SystemExit("AMEND_MLFLOW_PASSWORD is not set. MLflow is not served without a password.")
    for name in DROPPED_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(SETTINGS)
    gc.disable()  # garbage collection during imports takes half a second
    # Not at the top: these imports take seconds, and doctests import every module.
    import uvicorn.main  # noqa: F401  before MLflow, whose server checks whether uvicorn is loaded
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
    """Run a uvicorn command in this process, with our application instead of MLflow's."""
    from uvicorn.main import main as uvicorn

    os.environ.update(extra_env)
    gc.freeze()
    gc.enable()
    uvicorn([*command[command.index("uvicorn") + 1 : -1], "--factory", "amend.up.mlflow_server:app"])


def app() -> Application:
    from mlflow.server.fastapi_app import app

    return BasicAuthentication(QuietAssistant(app), password())


def password() -> str:
    return read_setting("mlflow_password")


def migrate_database(database: Path, mlflow: Callable[..., object]) -> None:
    """Create or migrate the database for this version of MLflow. ``mlflow`` is its command."""
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
