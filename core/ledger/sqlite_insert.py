"""Adding a batch on SQLite with many rows in a statement, which takes half the time of one statement for each row."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.ledger.batch import Batch

MAX_PARAMETERS = 999
"""Parameters of a statement that every version of SQLite accepts."""


def insert(driver: Any, columns: str, model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_]) -> None:
    """Insert the rows of a batch at consecutive positions; `columns` are the columns that it fills."""
    values = values_of(model_id, first, batch, holdout)
    row = f"({', '.join(value if isinstance(value, str) else '?' for value in values)})"
    given = [value for value in values if not isinstance(value, str)]
    cells = list(chain.from_iterable(zip(*given, strict=True)))
    step = MAX_PARAMETERS // len(given) * len(given)
    whole = len(cells) - len(cells) % step
    for parts in ([cells[i : i + step] for i in range(0, whole, step)], [cells[whole:]]):
        if parts and parts[0]:
            rows = ", ".join([row] * (len(parts[0]) // len(given)))
            driver.executemany(f"INSERT INTO examples ({columns}) VALUES {rows}", parts)


def values_of(model_id: int, first: int, batch: Batch, holdout: NDArray[np.bool_]) -> list[str | Iterable[Any]]:
    """The values of each column, as SQLite stores them; a constant if all rows have the same one.

    A constant costs nothing for each row.
    """
    count, fixed, withheld = len(batch), batch.x.dtype != object, int(holdout.sum())
    values: list[str | Iterable[Any]] = [str(int(model_id)), range(first, first + count)]
    values.append(str(int(withheld > 0)) if withheld in (0, count) else holdout.tolist())
    values += [batch.y.tolist(), *([batch.features] if fixed else [])]
    values += [batch.ids.to_pylist(), "NULL" if batch.subjects.count(None) == count else batch.subjects]
    if batch.stored_weights is not None:
        values.append(batch.stored_weights)
    if batch.times is not None:  # as SQLAlchemy writes a time there
        values.append([time and time.isoformat(" ", "microseconds") for time in batch.times.tolist()])
    if batch.sources is not None:
        values.append(batch.sources)
    if batch.unseen is not None:
        values.append(batch.unseen)
    return values if fixed else [*values, batch.features]
