"""Reading the examples in force for exports, chunk by chunk, with ids and splits.

As a pass, it is a row of short queries, and memory holds one chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.database import Database
from core.ledger import bulk
from core.ledger.layouts import Layout
from core.tables.ledger import HAS_CONTENT


@dataclass(frozen=True)
class ExportedRows:
    """Rows in the order of their positions, as the layout has them: inputs (n, numbers of one), all others (n,)."""

    ids: list[str]
    x: NDArray[Any]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    holdout: NDArray[np.bool_]


def read_exported(database: Database, model_id: int, layout: Layout, at: int) -> Iterator[ExportedRows]:
    """All examples in force at a position, without those that were removed meanwhile.

    Somebody who asks to be forgotten during an export is not in the rest of it.
    """
    where = f"model_id = :model AND position > :after AND position <= :until AND removed IS NULL AND {HAS_CONTENT}"
    query = f"SELECT position, y, x, weight, holdout, id FROM examples WHERE {where}"
    for after in range(0, at, layout.chunk):
        values = {"model": model_id, "after": after, "until": min(after + layout.chunk, at)}
        with database.read() as session, bulk.sqlalchemy_errors(connection := session.connection()):
            found = bulk.run(connection, query, values).fetchall()
        if found:
            found.sort(key=lambda row: row[0])
            yield export_rows(found, layout)


def export_rows(found: list[Any], layout: Layout) -> ExportedRows:
    """Rows of position, y, the bytes of x, weight, holdout and id."""
    rows = bulk.to_rows([row[:4] for row in found], layout.stored_dtype)
    y, x = layout.convert(rows.position, rows.y, rows.x) if layout.steps else (rows.y, rows.x)
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    holdout = np.fromiter((row[4] for row in found), np.bool_, len(rows))
    return ExportedRows([row[5] for row in found], x, y, weight, holdout)
