"""The Hessian and the leverages of a GLM on leaves, from the slots of rows.

Two features of a row are both nonzero only for the pairs of its leaves: T^2 numbers for each row instead of D^2. Pairs
of trees are summed one after the other, because the L x L numbers of a pair fit into a processor's cache.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior.model.tree_leaves import LeafRows

PAIR_ROWS = 2**15
"""Rows of one step: their leaves in two trees fit into a processor's cache."""


def leaf_hessian(rows: LeafRows, variance: Tensor) -> Tensor:
    """sum_i v_i phi_i phi_i' of one output: (n,) -> (D, D)."""
    T, L = rows.slots.shape[1], rows.leaves
    v = variance.detach().cpu().numpy().astype(np.float64)
    sums = np.zeros((T, T, L, L))
    ends = np.zeros((T, L))
    for start in range(0, len(rows), PAIR_ROWS):
        local, each = numbers_in_trees(rows, start), v[start : start + PAIR_ROWS]
        for i in range(T):
            first = local[i] * L
            ends[i] += np.bincount(local[i], each, minlength=L)
            for j in range(i + 1, T):
                sums[i, j] += np.bincount(first + local[j], each, minlength=L * L).reshape(L, L)
    out = np.zeros((rows.width, rows.width))
    out[:-1, :-1] = sums.transpose(0, 2, 1, 3).reshape(T * L, T * L)
    out[:-1, -1] = ends.reshape(-1)
    out += out.T
    out[np.arange(T * L), np.arange(T * L)] = ends.reshape(-1)
    out[-1, -1] = v.sum()
    return torch.from_numpy(out).to(variance)


def leaf_leverage(rows: LeafRows, inverse: Tensor) -> Tensor:
    """phi_i' M phi_i for each row, M = H^-1: (D, D) -> (n,)."""
    T, L = rows.slots.shape[1], rows.leaves
    M = inverse.detach().cpu().numpy()
    pairs = np.ascontiguousarray(2 * M[:-1, :-1].reshape(T, L, T, L).transpose(0, 2, 1, 3)).reshape(T, T, L * L)
    ends = (np.diagonal(M)[:-1] + 2 * M[:-1, -1]).reshape(T, L)
    out = np.full(len(rows), float(M[-1, -1]))
    for start in range(0, len(rows), PAIR_ROWS):
        local, total = numbers_in_trees(rows, start), out[start : start + PAIR_ROWS]
        for i in range(T):
            first = local[i] * L
            total += ends[i][local[i]]
            for j in range(i + 1, T):
                total += pairs[i, j][first + local[j]]
    return torch.from_numpy(out).to(inverse)


def numbers_in_trees(rows: LeafRows, start: int) -> NDArray[Any]:
    """(T, n) the number of each row's leaf in its tree, for the rows of one step."""
    slots = rows.slots[start : start + PAIR_ROWS].cpu().numpy()
    return np.ascontiguousarray((slots % rows.leaves).T)
