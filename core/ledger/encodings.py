"""Encodings: the features that a model's frozen encoder computes for its examples, stored next to the raw rows.

A worker encodes each row once (`core/encoders/example_encoding.py`); every pass of the engine reads the features from
here. A stored encoding starts with a hash of the raw row, from which the digest of a dataset is computed: it does not
depend on the encoder. Features that are mostly zero are stored as pairs of index and value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from core.ledger.queries import batched
from core.tables.ledger import Encoding, Example
from core.tables.models import Model

if TYPE_CHECKING:  # it imports torch, which the scheduler does not need
    from core.kprior.model.spec import FrozenEncoder

HASH_BYTES = 16
DENSE, SPARSE = b"d", b"s"
FAILED = b""
"""The encoding of a row for which the encoder failed."""
HEAD_BYTES = HASH_BYTES + 1


def key_of(encoder: FrozenEncoder) -> str:
    """The key of an encoder in the database: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(encoder, sort_keys=True).encode()).hexdigest()[:32]


def pack(raw: bytes, features: NDArray[np.float32]) -> bytes:
    """The encoding of a raw row: a hash of it, and its (D,) features.

    >>> len(pack(b"row", np.zeros(1000, np.float32))), len(pack(b"row", np.ones(1000, np.float32)))
    (17, 4017)
    """
    head = hashlib.blake2b(raw, digest_size=HASH_BYTES).digest()
    (used,) = features.nonzero()
    if 2 * len(used) < len(features):
        return head + SPARSE + used.astype("<u4").tobytes() + features[used].astype("<f4").tobytes()
    return head + DENSE + features.astype("<f4").tobytes()


def unpack(encodings: Sequence[bytes], width: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """(n, D) features and (n, 16) hashes of the raw rows.

    >>> row = np.array([0, 0, 0, 0.5], np.float32)
    >>> unpack([pack(b"row", row)], 4)[0].tolist()
    [[0.0, 0.0, 0.0, 0.5]]
    """
    features = np.zeros((len(encodings), width), np.float32)
    hashes = np.frombuffer(bytearray().join([data[:HASH_BYTES] for data in encodings]), np.uint8)
    for row, data in zip(features, encodings, strict=True):
        if data[HASH_BYTES:HEAD_BYTES] == DENSE:
            row[:] = np.frombuffer(data, "<f4", offset=HEAD_BYTES)
        else:
            count = (len(data) - HEAD_BYTES) // 8
            index = np.frombuffer(data, "<u4", count, HEAD_BYTES)
            row[index] = np.frombuffer(data, "<f4", count, HEAD_BYTES + 4 * count)
    return features, hashes.reshape(len(encodings), HASH_BYTES)


def forget(session: Session, model_id: int, positions: Sequence[int]) -> None:
    """Delete the encodings of examples at some positions."""
    for some in batched(positions):
        session.execute(delete(Encoding).where(Encoding.model_id == model_id, Encoding.position.in_(some)))


def forget_matching(session: Session, model_id: int, selected: ColumnElement[bool]) -> None:
    """Delete the encodings of the examples that satisfy a condition."""
    chosen = select(Example.position).where(Example.model_id == model_id, selected)
    session.execute(delete(Encoding).where(Encoding.model_id == model_id, Encoding.position.in_(chosen)))


def count_at(session: Session, model_id: int, positions: Sequence[int]) -> int:
    """How many encodings there are of examples at some positions."""
    total = 0
    for some in batched(positions):
        ours = (Encoding.model_id == model_id, Encoding.position.in_(some))
        total += session.scalar(select(func.count()).where(*ours)) or 0
    return total


def is_failed(model: Model, encoder: FrozenEncoder) -> ColumnElement[bool]:
    """Condition on examples: the encoder failed for them."""
    failed = (Encoding.model_id == model.id, Encoding.encoder == key_of(encoder), func.length(Encoding.data) == 0)
    return Example.position.in_(select(Encoding.position).where(*failed))


def count_failed(session: Session, model: Model, encoder: FrozenEncoder, at: int, holdout: bool) -> int:
    """How many examples in force at a position the encoder failed for."""
    in_force = (Example.position <= at, or_(Example.removed.is_(None), Example.removed > at))
    ours = (Example.model_id == model.id, Example.holdout.is_(holdout), *in_force, is_failed(model, encoder))
    return session.scalar(select(func.count()).where(*ours)) or 0


def is_encoded(encodings: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) which rows have features."""
    return np.fromiter((bool(data) for data in encodings), np.bool_, len(encodings))
