"""Reading the examples in force for exports, chunk by chunk, with ids and splits.

Like a pass, an export is a sequence of short queries, and memory holds one chunk at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.database import Database
from core.ledger import bulk
from core.ledger.layouts import Layout
from core.ledger.unseen_categories import without_nulls
from core.tables.ledger import HAS_CONTENT


@dataclass(frozen=True)
class ExportedRows:
    """Rows ordered by position and converted to the layout: inputs (n, width of one input), all others (n,)."""

    ids: list[str]
    x: NDArray[Any]
    y: NDArray[np.float64]
    weight: NDArray[np.float64]
    holdout: NDArray[np.bool_]
    times: list[datetime | None]
    """Event times, where examples have one."""
    sources: list[str | None]
    unseen: Sequence[str | None] | None
    """Texts of unseen category values; None if there are none."""


def read_exported(database: Database, model_id: int, layout: Layout, at: int) -> Iterator[ExportedRows]:
    """All examples in force at a position, except those removed since.

    The data of a person whose erasure is requested during an export is not in the rest of it.
    """
    where = f"model_id = :model AND position > :after AND position <= :until AND removed IS NULL AND {HAS_CONTENT.text}"
    query = f"SELECT position, y, x, weight, unseen, holdout, id, time, source FROM examples WHERE {where}"
    for after in range(0, at, layout.chunk):
        values = {"model": model_id, "after": after, "until": min(after + layout.chunk, at)}
        with database.read() as session, bulk.sqlalchemy_errors(connection := session.connection()):
            rows = bulk.run(connection, query, values).fetchall()
        if rows:
            rows.sort(key=lambda row: row[0])
            yield export_rows(rows, layout)


def export_rows(selected: list[Any], layout: Layout) -> ExportedRows:
    """Convert rows of position, y, the bytes of x, weight, unseen texts, holdout, id, time and source."""
    rows = bulk.to_rows(selected, layout.stored_dtype)
    y, x, unseen = rows.y, rows.x, without_nulls([row[4] for row in selected])
    if layout.steps:
        y, x, unseen = layout.convert(rows.position, rows.y, rows.x, rows.unseen)
    weight = np.ones(len(rows)) if rows.weight is None else rows.weight
    holdout = np.fromiter((row[5] for row in selected), np.bool_, len(rows))
    _, _, _, _, _, _, ids, times, sources = zip(*selected, strict=True)
    return ExportedRows(list(ids), x, y, weight, holdout, [to_moment(time) for time in times], list(sources), unseen)


def to_moment(time: datetime | str | None) -> datetime | None:
    """A time as either driver returns it; SQLite's returns text."""
    if isinstance(time, str):
        return datetime.fromisoformat(time).replace(tzinfo=UTC)
    return time
