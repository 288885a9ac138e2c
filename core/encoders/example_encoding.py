"""Encoding the examples of a model: a job calls this before it reads them.

Each row is encoded once for each encoder of the model. A job that dies half-way leaves complete encodings of some rows,
and the next one continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from core.database import Database
from core.errors import Unavailable
from core.inference.frozen_encoders import Encode
from core.kprior.model.spec import Spec, frozen_encoder
from core.ledger import bulk, encodings
from core.ledger.layouts import Layout
from core.ledger.passes import NOT_REMOVED
from core.tables.ledger import HAS_CONTENT, Encoding, Example
from core.tables.models import Model

ROWS_PER_STEP = 500
"""Rows that are encoded and stored at a time."""
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class UnencodedRows:
    """Examples of a model that have not been encoded yet."""

    model_id: int
    spec: Spec
    span: range
    """They were added at the positions after its start, up to its end."""
    removals_position: int
    """Examples that were removed up to this position are left out."""


def encode_examples(database: Database, wanted: UnencodedRows, encode: Encode, progress: Progress) -> None:
    """Encode examples and store the features."""
    model_id, spec, span = wanted.model_id, wanted.spec, wanted.span
    encoder = frozen_encoder(spec)
    assert encoder is not None
    key = encodings.key_of(encoder)
    with database.read() as session:
        layout = Layout.at(session, model_id, spec, span.stop)
    for after in span[::ROWS_PER_STEP]:
        progress((after - span.start) / len(span), "Encoding the examples")
        until = min(after + ROWS_PER_STEP, span.stop)
        with database.read() as session:
            rows = read_missing(session, model_id, key, after, until, wanted.removals_position)
        if not rows:
            continue
        features = encode(raw_inputs(layout, rows))
        finite = [bool(np.isfinite(values).all()) for values in features]
        if not any(finite) and not still_works(database, model_id, key, layout, encode):
            message = "The encoder of the model failed for all examples that it was given. Nothing was stored."
            raise Unavailable("encoder_failed", message)
        data = [
            encodings.pack(row[1], values) if good else encodings.FAILED
            for row, values, good in zip(rows, features, finite, strict=True)
        ]
        with database.write() as session:
            store(session, model_id, key, [row[0] for row in rows], data)


def still_works(database: Database, model_id: int, key: str, layout: Layout, encode: Encode) -> bool:
    """Whether the encoder can encode an example that it has encoded before, so that others are to blame themselves."""
    ours = (Encoding.position == Example.position, Encoding.model_id == Example.model_id)
    good = (Encoding.model_id == model_id, Encoding.encoder == key, Encoding.data != encodings.FAILED)
    with database.read() as session:
        row = session.execute(select(Example.position, Example.x).where(*ours, *good, HAS_CONTENT).limit(1)).first()
    return row is not None and bool(np.isfinite(encode(raw_inputs(layout, [row]))).all())


def read_missing(session: Session, model_id: int, key: str, after: int, until: int, at: int) -> list[Any]:
    """Position and x of the examples in a window that were not removed up to `at` and have no encoding."""
    ours = "encodings.model_id = examples.model_id AND encodings.position = examples.position"
    known = f"SELECT 1 FROM encodings WHERE {ours} AND encodings.encoder = :encoder"
    window = "model_id = :model AND position > :after AND position <= :until"
    query = (
        f"SELECT position, x FROM examples WHERE {window} AND {NOT_REMOVED} AND {HAS_CONTENT} AND NOT EXISTS ({known})"
    )
    values: bulk.Parameters = {"model": model_id, "after": after, "until": until, "at": at, "encoder": key}
    with bulk.sqlalchemy_errors(connection := session.connection()):
        return sorted(bulk.run(connection, query, values).fetchall())


def raw_inputs(layout: Layout, rows: Sequence[Any]) -> Any:
    """(n, width) the inputs of rows of position and x."""
    position = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    return layout.convert(position, np.zeros(len(rows)), [row[1] for row in rows]).x


def store(session: Session, model_id: int, key: str, positions: Sequence[int], data: Sequence[bytes]) -> None:
    """Store encodings, except those of examples that have been deleted meanwhile.

    Deletions hold the lock on the model's row as well, so no encoding outlives its example.
    """
    if session.get(Model, model_id, with_for_update=True) is None:
        return
    ours = (Example.model_id == model_id, Example.position.between(min(positions), max(positions)))
    there = set(session.scalars(select(Example.position).where(*ours, HAS_CONTENT)))
    stored = select(Encoding.position).where(Encoding.model_id == model_id, Encoding.encoder == key)
    there -= set(session.scalars(stored.where(Encoding.position.between(min(positions), max(positions)))))
    rows = [
        {"model_id": model_id, "encoder": key, "position": position, "data": one}
        for position, one in zip(positions, data, strict=True)
        if position in there
    ]
    if rows:
        session.execute(insert(Encoding), rows)
