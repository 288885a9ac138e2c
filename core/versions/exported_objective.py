"""The objective of a linear model as plain arrays, so that others can minimise it with their own tools.

    F(W) = sum_i v_i l(y_i, W x_i) + 1/2 sum delta (W - toward)^2 + <perturbation, W>

W (K, D) are the weights of a version's file, x_i the encoded features with the constant last, y_i the targets of the
family and v_i the sample weights, those of classes included. `amend verify --refit` minimises it.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.numpy import save
from scipy.sparse import csr_matrix, vstack

from core.database import Database
from core.errors import Conflict
from core.kprior import State
from core.kprior.model.kinked_losses import Huber
from core.ledger import passes
from core.ledger.spec_history import spec_at
from core.tables.models import Model
from core.tables.versions import Version

MAX_NUMBERS = 2**26
"""Features of all rows of a model that a bundle may contain."""
BLOCK_ROWS = 256
"""Rows that are hashed together. Hashing each row by itself would take longer than an erasure."""
SALT_BYTES = 32
ROW_TENSORS = ("targets", "sample_weights", "positions")
SPARSE_BELOW = 0.3
"""Fraction of features that are not zero below which the compressed format is smaller."""


def describe_objective(state: State) -> dict[str, Any] | None:
    """The parameters of the objective, by the names of tensors in the version's file; None for networks."""
    if not state.predictor.linear:
        return None
    family, regularizer = state.predictor.family, state.regularizer
    outputs = family.outputs
    found: dict[str, Any] = {
        "family": family.name,
        "layout": "outputs x features, row by row; the last feature is the constant 1",
        "shape": [outputs, state.predictor.size // outputs],
        "weights": "w",
        "delta": "delta",
        "toward": None if regularizer.toward is None else "toward",
        "perturbation": None if regularizer.linear is None else "perturbation",
    }
    if isinstance(family, Huber):
        found["threshold"] = family.threshold
    return found


class RetainedRows:
    """The training rows that a version reflects, as the objective uses them.

    `salt` is the salt of the version's commitment. The salts of the rows derive from it, so that the Merkle root is
    reproducible, and confirms no guess of a row once the version is purged and its salt deleted.
    """

    def __init__(self, database: Database, model: Model, version: Version, state: State, salt: bytes) -> None:
        with database.read() as session:
            spec = spec_at(session, model.id, model.spec, version.position)
        at, removals = version.position, version.removals_position
        self.data = passes.read_in_force(database, model.id, spec, at, removals_position=removals)
        self.predictor, self.count = state.predictor, state.count
        self.salt = salt
        width = state.predictor.size // state.predictor.family.outputs
        if self.count * width > MAX_NUMBERS:
            limit = f"{self.count} rows with {width} features each exceed the limit of {MAX_NUMBERS} numbers."
            raise Conflict("bundle_too_large", f"The rows of model {model.name} are too many for a bundle: {limit}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The tensors of the rows by name, chunk by chunk in the order of positions."""
        for chunk in self.data:
            weight = self.predictor.weigh(chunk)
            yield {
                # plus zero: the compressed format has no negative zeros
                "features": self.predictor.features(chunk.x).numpy() + 0.0,
                "targets": chunk.y.numpy().astype(np.float64),
                "sample_weights": np.ones(len(chunk)) if weight is None else weight.numpy().astype(np.float64),
                "positions": chunk.key.numpy().astype(np.int64),
            }

    def commit(self) -> list[bytes] | None:
        """The commitments of all blocks of rows; None if examples have been deleted since."""
        commitments, salts = list[bytes](), self.salts()
        count, rest = 0, np.zeros((0, 0), np.uint8)
        for chunk in self:
            content = row_bytes(chunk)
            count += len(content)
            if count > self.count:
                return None
            rest = content if len(rest) == 0 else np.concatenate([rest, content])
            end = len(rest) if count == self.count else len(rest) // BLOCK_ROWS * BLOCK_ROWS
            for start in range(0, end, BLOCK_ROWS):
                salt = salts[len(commitments)].tobytes()
                commitments.append(hashlib.sha256(salt + rest[start : min(start + BLOCK_ROWS, end)].tobytes()).digest())
            rest = rest[end:]
        return commitments if count == self.count else None

    def salts(self) -> Any:
        """The salt of each block of rows (n, SALT_BYTES)."""
        blocks = -(-self.count // BLOCK_ROWS)
        stream = hashlib.shake_256(b"rows\0" + self.salt).digest(SALT_BYTES * blocks)
        return np.frombuffer(stream, np.uint8).reshape(blocks, SALT_BYTES)

    def read(self) -> dict[str, Any]:
        """The tensors of all rows. Features are compressed if most of them are zero."""
        chunks = [{**chunk, "features": csr_matrix(chunk["features"])} for chunk in self]
        others = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in ROW_TENSORS}
        others["salts"] = self.salts()
        features = vstack([chunk.pop("features") for chunk in chunks], "csr")
        if features.nnz > SPARSE_BELOW * features.shape[0] * features.shape[1]:
            return {"features": features.toarray(), **others}
        indices = {name: getattr(features, name).astype(np.int64) for name in ("indices", "indptr")}
        return {"data": features.data, **indices, **others}


def row_bytes(chunk: dict[str, Any]) -> Any:
    """The bytes of each row that are hashed: position, features, targets and sample weight (n, bytes)."""
    numbers = np.hstack([chunk["features"], chunk["targets"], chunk["sample_weights"][:, None]])
    positions = chunk["positions"].astype("<i8")[:, None]
    return np.hstack([part.view(np.uint8) for part in (positions, np.ascontiguousarray(numbers, dtype="<f8"))])


def save_rows(rows: dict[str, Any]) -> bytes:
    """The rows as a safetensors file."""
    return bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in rows.items()}))
