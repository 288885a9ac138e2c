"""``python -m client.up.tracking FOLDER PORT``: MLflow's server, on a database that is never half-made.

MLflow's own migrations cannot be repeated after they were killed: it would never start again. So they are run on a
copy, which takes the place of the database when it is finished.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

HERE = "127.0.0.1"


def main(folder: Path, port: str) -> None:
    from mlflow.cli import cli  # not above: it takes seconds, and tests of docstrings import all modules

    database = folder / "mlflow.db"
    bring_up_to_date(database, cli)
    options = ["--host", HERE, "--port", port, "--workers", "1", "--backend-store-uri", url_of(database)]
    cli(["server", *options, "--artifacts-destination", (folder / "artifacts").as_uri()])


def bring_up_to_date(database: Path, mlflow: Callable[..., object]) -> None:
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
    main(Path(sys.argv[1]), sys.argv[2])
