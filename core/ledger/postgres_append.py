"""Adding a batch on PostgreSQL with few round trips: all statements of the transaction in one message, then the rows.

`additions.add_new` sends the same statements one by one and waits for each response, mostly under the model's lock.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import ClientCursor
from sqlalchemy import Connection

from core.database import EARLY_COMMIT
from core.ledger import bulk
from core.ledger.batch import Batch
from core.ledger.positions import ADVANCE_AND_AUDIT, ADVANCE_IF_SAME, Counts, Expected, advance_values
from core.ledger.psycopg_internals import abort_copy, copy_writer, execute_together, finish_copy
from core.tables.ledger import ChangeKind


def append(
    connection: Connection,
    model_id: int,
    expected: Expected,
    batch: Batch,
    holdout: NDArray[np.bool_],
    audited: Mapping[str, Any],
) -> int | None:
    """Store a batch at the model's next positions, in a transaction of its own; returns the last of them.

    Returns None, with nothing stored, if the model does not exist or is not as expected. Raises IntegrityError if one
    of the ids is already in force. `audited` has the values of the entry of the audit log; empty: none.
    """
    driver: Any = connection.connection.driver_connection
    chunks = bulk.lay_out(model_id, batch, holdout)
    first_chunk = next(chunks)  # encoded before the lock is taken
    counts = Counts.of_new(holdout)
    values = advance_values(model_id, len(batch), ChangeKind.ADDED, counts, None, expected)
    statement = bulk.to_psycopg(ADVANCE_AND_AUDIT if audited else ADVANCE_IF_SAME)
    advance = ClientCursor(driver).mogrify(statement, {**values, **audited})
    with bulk.sqlalchemy_errors(connection):
        # the server responds up to COPY, and then waits for the rows
        _, moved, _ = execute_together(driver, f"BEGIN; {advance}; {bulk.copy_of(batch)}; {EARLY_COMMIT}")
        if moved.ntuples == 0:
            abort_copy(driver, b"the model does not exist")  # the pool rolls back the rest
            return None
        last = int(moved.get_value(0, 0) or 0)
        try:
            bulk.write_rows(copy_writer(driver), chain([first_chunk], chunks), last - len(batch) + 1)
        except BaseException:
            connection.invalidate()  # a connection in the middle of a COPY cannot be used for anything else
            raise
        finish_copy(driver)
    return last
