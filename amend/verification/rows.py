"""The retained rows in a bundle: features, targets, sample weights, and the salts that their Merkle root commits to."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from amend.verification import merkle
from amend.verification.families import Array
from amend.verification.findings import Refuted
from amend.verification.objective import densify
from amend.verification.tensors import Tensors

SALT_BYTES = 32
CHUNK_NUMBERS = 2**22
"""Numbers that are held in memory at once as dense rows."""


@dataclass(frozen=True)
class Rows:
    features: Any
    """(n, D): an array, or a scipy CSR matrix."""
    targets: Array
    """(n,) or (n, K), as they were hashed."""
    sample_weights: Array
    positions: Any
    salts: Any

    def commitments(self) -> Iterator[bytes]:
        """Yield the commitment of each row: SHA-256(salt || position || features || targets || sample weight)."""
        targets = self.targets.reshape(len(self.targets), -1)
        step = max(1, CHUNK_NUMBERS // self.features.shape[1])
        for start in range(0, len(targets), step):
            chunk = slice(start, start + step)
            numbers = np.hstack([densify(self.features[chunk]), targets[chunk], self.sample_weights[chunk, None]])
            numbers = np.ascontiguousarray(numbers, dtype="<f8")
            positions = self.positions[chunk].astype("<i8")
            for salt, position, row in zip(self.salts[chunk], positions, numbers, strict=True):
                yield hashlib.sha256(salt.tobytes() + position.tobytes() + row.tobytes()).digest()

    def root(self) -> bytes:
        return merkle.root_of(self.commitments())


def read_rows(tensors: Tensors, columns: int) -> Rows:
    """The rows in a file, with `columns` features each."""
    targets, sample_weights = tensors.numbers("targets", 1, 2), tensors.numbers("sample_weights", 1)
    positions, salts = tensors.take("positions", np.int64, (1,)), tensors.take("salts", np.uint8, (2,))
    count = len(positions)
    features = read_sparse(tensors, count, columns) if "indptr" in tensors else tensors.numbers("features", 2)
    lengths = {features.shape[0], len(targets), len(sample_weights), len(salts), count}
    if len(lengths) > 1 or features.shape[1] != columns or salts.shape[1] != SALT_BYTES:
        raise Refuted(f"{tensors.where}: the tensors have different numbers of rows, or wrong numbers of columns.")
    if bool((np.diff(positions) <= 0).any()) or bool((positions < 0).any()):
        raise Refuted(f"{tensors.where}: `positions` must increase, so that no row counts twice.")
    if bool((sample_weights < 0).any()):
        raise Refuted(f"{tensors.where}: `sample_weights` must not be negative.")
    return Rows(features, targets, sample_weights, positions, salts)


def read_sparse(tensors: Tensors, count: int, columns: int) -> Any:
    """Features in compressed sparse row format."""
    data = tensors.numbers("data", 1)
    indices, indptr = tensors.take("indices", np.int64, (1,)), tensors.take("indptr", np.int64, (1,))
    try:
        matrix = csr_matrix((data, indices, indptr), shape=(count, columns))
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise Refuted(f"{tensors.where}: the sparse features are not valid: {error}.") from None
    matrix.sum_duplicates()
    return matrix
