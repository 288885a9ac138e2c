"""The objective of a linear model as plain arrays, so that others can minimise it with their own tools.

    F(W) = sum_i v_i l(y_i, W x_i) + 1/2 sum delta (W - toward)^2 + <perturbation, W>

W (K, D) are the weights of a version's file, x_i the encoded features with the constant last, y_i the targets of the
family and v_i the sample weights, those of classes included. `amend verify --refit` minimises it.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from scipy.sparse import csr_matrix, vstack

from core.database import Database
from core.errors import Conflict
from core.kprior import Examples, State
from core.kprior.model.kinked import Huber
from core.ledger import passes
from core.ledger.specs import spec_at
from core.tables.models import Model
from core.tables.versions import Version

MAX_NUMBERS = 2**26
"""Features of all rows of a model that a bundle may contain."""
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
    """The training rows that a version reflects, as the objective uses them."""

    def __init__(self, database: Database, model: Model, version: Version, state: State, secret: bytes) -> None:
        with database.read() as session:
            spec = spec_at(session, model.id, model.spec, version.position)
        self.data = passes.read_in_force(database, model.id, spec, version.position)
        self.predictor, self.count = state.predictor, state.count
        self.salt_of = salts_of(secret, model.id)
        width = state.predictor.size // state.predictor.family.outputs
        if self.count * width > MAX_NUMBERS:
            limit = f"{self.count} rows with {width} features each exceed the limit of {MAX_NUMBERS} numbers."
            raise Conflict("bundle_too_large", f"The rows of model {model.name} are too many for a bundle: {limit}")

    def read(self) -> dict[str, Any] | None:
        """The tensors of the rows, by name; None if examples have been deleted since."""
        parts = [self.encode(chunk) for chunk in self.data]
        if sum(len(part["positions"]) for part in parts) != self.count:
            return None
        features = vstack([part.pop("features") for part in parts], "csr")
        others = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
        if features.nnz > SPARSE_BELOW * features.shape[0] * features.shape[1]:
            return {"features": features.toarray(), **others}
        indices = {name: getattr(features, name).astype(np.int64) for name in ("indices", "indptr")}
        return {"data": features.data, **indices, **others}

    def encode(self, chunk: Examples) -> dict[str, Any]:
        chunk = chunk.take(torch.argsort(chunk.key))
        weight = self.predictor.weigh(chunk)
        ones = np.ones(len(chunk))
        positions = chunk.key.numpy().astype(np.int64)
        salts = b"".join(self.salt_of(int(position)) for position in positions)
        return {
            "features": csr_matrix(self.predictor.features(chunk.x).numpy()),
            "targets": chunk.y.numpy().astype(np.float64),
            "sample_weights": ones if weight is None else weight.numpy().astype(np.float64),
            "positions": positions,
            "salts": np.frombuffer(salts, np.uint8).reshape(-1, 32),
        }


def salts_of(secret: bytes, model_id: int) -> Callable[[int], bytes]:
    """The salt of each row of a model: the same in every bundle, so that the Merkle root is reproducible."""
    return lambda position: hmac.digest(secret, f"row:{model_id}:{position}".encode(), "sha256")


def commit_rows(rows: dict[str, Any]) -> Iterator[bytes]:
    """The commitment of each row: SHA-256 of salt, position, features, targets and sample weight."""
    sparse = None if "features" in rows else csr_matrix((rows["data"], rows["indices"], rows["indptr"]))
    for i, (salt, position) in enumerate(zip(rows["salts"], rows["positions"], strict=True)):
        # the constant feature is never zero, so the sparse matrix has all columns
        x = rows["features"][i] if sparse is None else sparse[i].toarray()[0]
        numbers = np.concatenate([x, rows["targets"][i], rows["sample_weights"][i : i + 1]]).astype("<f8")
        content = salt.tobytes() + int(position).to_bytes(8, "little") + numbers.tobytes()
        yield hashlib.sha256(content).digest()


def save_rows(rows: dict[str, Any]) -> bytes:
    """The rows as a safetensors file."""
    return bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in rows.items()}))
