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
BLOCK_ROWS = 256
"""Rows that are hashed together; the last block may have fewer."""
DENSE_NUMBERS = 2**22
"""Sparse rows are made dense a few at a time, so that many columns do not need much memory."""


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
        """Yield the commitment of each block of rows: SHA-256 of its salt and its rows.

        A row is its position, features, targets and sample weight.
        """
        targets = self.targets.reshape(len(self.targets), -1)
        at_once = max(1, min(BLOCK_ROWS, DENSE_NUMBERS // self.features.shape[1]))
        for block, start in enumerate(range(0, len(targets), BLOCK_ROWS)):
            digest = hashlib.sha256(self.salts[block].tobytes())
            end = min(start + BLOCK_ROWS, len(targets))
            for first in range(start, end, at_once):
                rows = slice(first, min(first + at_once, end))
                numbers = np.hstack([densify(self.features[rows]), targets[rows], self.sample_weights[rows, None]])
                for position, row in zip(self.positions[rows].astype("<i8"), numbers.astype("<f8"), strict=True):
                    digest.update(position.tobytes() + row.tobytes())
            yield digest.digest()

    def root(self) -> bytes:
        return merkle.root_of(self.commitments())


def read_rows(tensors: Tensors, columns: int) -> Rows:
    """The rows in a file, with `columns` features each."""
    targets, sample_weights = tensors.numbers("targets", 1, 2), tensors.numbers("sample_weights", 1)
    positions, salts = tensors.take("positions", np.int64, (1,)), tensors.take("salts", np.uint8, (2,))
    count = len(positions)
    features = read_sparse(tensors, count, columns) if "indptr" in tensors else tensors.numbers("features", 2)
    lengths, blocks = {features.shape[0], len(targets), len(sample_weights), count}, -(-count // BLOCK_ROWS)
    if len(lengths) > 1 or features.shape[1] != columns or salts.shape != (blocks, SALT_BYTES):
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
