"""Statistics for SQLite's query planner, so that it looks examples up in their indexes.

Without statistics, SQLite assumes that the first column of every index selects ten rows. It would then read all
examples of a model to find those of one person, because the primary key starts with the model's id. The statistics are
fixed: measured ones would depend on the examples, and outlive them.
"""

from __future__ import annotations

from sqlalchemy import Connection

ALL, MANY, SOME, FEW = 10_000_000, 1_000_000, 100_000, 10_000
"""Rows of all models, rows of a model, and so on: what matters is which numbers are larger."""
STATISTICS: dict[str, dict[str, tuple[int, ...]]] = {
    "examples": {
        "examples": (ALL, MANY, 1),
        "uq_examples_id_in_force": (ALL, MANY, 1),
        "ix_examples_subject": (ALL, 10, 10),
        "ix_examples_source": (ALL, MANY, FEW),
        "ix_examples_removed": (SOME, FEW, 10),
        "ix_examples_quarantine": (SOME, FEW, 1_000),
        "ix_examples_unseen": (SOME, FEW, 1),
    },
    "pending_examples": {
        "sqlite_autoindex_pending_examples_1": (ALL, MANY, 1),
        "ix_pending_examples_created_at": (ALL, MANY, 10),
        "ix_pending_examples_source": (ALL, MANY, FEW),
        "ix_pending_examples_subject": (ALL, 10, 10),
    },
}
"""By table and index: rows in the index, and rows with the same values in its first column, in its first two, ..."""


def write_statistics(connection: Connection) -> None:
    """Store the statistics in the database, and use them in this connection. PostgreSQL maintains its own."""
    if connection.dialect.name != "sqlite":
        return
    connection.exec_driver_sql("ANALYZE sqlite_master")  # creates the table of statistics
    for table, indexes in STATISTICS.items():
        connection.exec_driver_sql("DELETE FROM sqlite_stat1 WHERE tbl = ?", (table,))
        for index, counts in indexes.items():
            values = (table, index, " ".join(map(str, counts)))
            connection.exec_driver_sql("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)", values)
    connection.exec_driver_sql("ANALYZE sqlite_master")  # reads it
