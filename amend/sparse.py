"""Sparse matrices (scipy.sparse), which go out with their zeros, some rows at once. scipy itself is not needed."""

from __future__ import annotations

import sys
from typing import Any


def is_sparse(values: Any) -> bool:
    return hasattr(values, "tocsr") and hasattr(values, "toarray")


class DenseRows:
    """A sparse matrix as an array of its rows, none of which is made before it is asked for."""

    def __init__(self, matrix: Any) -> None:
        if len(matrix.shape) != 2:
            raise ValueError(f"a sparse matrix of inputs has rows and columns; this one has the shape {matrix.shape}")
        self.matrix = matrix.tocsr()  # others cannot tell some rows
        self.nbytes = int(matrix.shape[0] * matrix.shape[1] * matrix.dtype.itemsize)

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def __getitem__(self, some: slice) -> Any:
        return self.matrix[some].toarray()


def as_rows(values: Any) -> Any:
    """Columns and inputs as they are, but for sparse ones."""
    return DenseRows(values) if is_sparse(values) else values


def to_vector(row: Any) -> Any:
    """One row of a sparse matrix, which may be a matrix itself, as an array; of a matrix all rows."""
    dense = row.toarray()
    return dense[0] if dense.ndim == 2 and len(dense) == 1 else dense


def densify(frame: Any) -> Any:
    """A frame of pandas without sparse columns, which Arrow has not."""
    kind = sys.modules["pandas"].SparseDtype
    sparse = [isinstance(found, kind) for found in frame.dtypes]
    if not any(sparse):
        return frame
    return frame.astype({name: frame.dtypes[name].subtype for name in frame.columns[sparse]})
