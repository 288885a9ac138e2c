"""Sparse matrices (scipy.sparse), made dense a few rows at a time. Does not import scipy."""

import sys
from typing import Any


def is_sparse(values: Any) -> bool:
    return hasattr(values, "tocsr") and hasattr(values, "toarray")


class DenseRows:
    """A sparse matrix as a sequence of dense rows, which are created on access."""

    def __init__(self, matrix: Any) -> None:
        if len(matrix.shape) != 2:
            raise ValueError(f"A sparse matrix of inputs must have two dimensions, not the shape {matrix.shape}.")
        self.matrix = matrix.tocsr()  # other formats do not support row slices
        self.nbytes = int(matrix.shape[0] * matrix.shape[1] * matrix.dtype.itemsize)

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def __getitem__(self, rows: slice) -> Any:
        return self.matrix[rows].toarray()


def as_rows(values: Any) -> Any:
    """Wrap sparse values; return others unchanged."""
    return DenseRows(values) if is_sparse(values) else values


def to_vector(row: Any) -> Any:
    """A sparse row as a one-dimensional array; a sparse matrix with several rows as a dense matrix."""
    dense = row.toarray()
    return dense[0] if dense.ndim == 2 and len(dense) == 1 else dense


def densify(frame: Any) -> Any:
    """A pandas frame with its sparse columns made dense, since Arrow has no sparse columns."""
    kind = sys.modules["pandas"].SparseDtype
    sparse = [isinstance(dtype, kind) for dtype in frame.dtypes]
    if not any(sparse):
        return frame
    return frame.astype({name: frame.dtypes[name].subtype for name in frame.columns[sparse]})
