"""MLflow's database at home: there as a whole or not at all, whenever somebody is killed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from amend.up.mlflow_server import migrate_database


def test_a_database_appears_only_when_complete_and_keeps_its_data_in_a_migration(
    tmp_path: Path,
) -> None:
    from mlflow.cli import cli  # takes seconds: not for those who only look which tests there are

    database = tmp_path / "mlflow.db"
    there: list[bool] = []

    def mlflow(*arguments: Any, **options: Any) -> None:
        cli(*arguments, **options)
        there.append(database.exists())

    (tmp_path / "unfinished.db").write_bytes(b"of somebody who was killed")
    migrate_database(database, mlflow)
    assert there == [False]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("INSERT INTO registered_models (name) VALUES ('churn')")

    migrate_database(database, mlflow)
    assert len(there) == 1
    (tmp_path / "mlflow.version").write_text("an earlier one")
    migrate_database(database, mlflow)
    assert len(there) == 2
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM registered_models").fetchall() == [("churn",)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "mlflow.version"]
