"""Traversal of trees: follows rows from the roots of all trees to their leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .tree_splits import LeafEncoder

ZERO = 1e-35
"""LightGBM's limit for zero, where zeros count as missing."""
WORD_BITS = 32
"""Bits of one word of a set of categories."""


Visit = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], None]
"""Called for each step down: pairs (row * trees + tree), their nodes, and the children that they go to."""


class TreeNodes:
    """The nodes of all trees in flat arrays, for following rows through them."""

    def __init__(self, encoder: LeafEncoder) -> None:
        trees, size = encoder.feature.shape

        def flat(name: str) -> NDArray[Any]:
            values: NDArray[Any] = getattr(encoder, name).detach().cpu().numpy().reshape(-1)
            return values

        first = np.repeat(np.arange(trees, dtype=np.int64), size)
        self.roots = np.arange(trees, dtype=np.int64) * size
        # the number of a child among all nodes, or -1 - slot of a leaf; right children first, indexed by the decision
        ends = [flat(side).astype(np.int64) for side in ("right", "left")]
        self.children = np.stack(
            [np.where(end >= 0, first * size + end, end - first * encoder.leaves) for end in ends], 1
        ).reshape(-1)
        self.feature, self.threshold = flat("feature").astype(np.int64), flat("threshold")
        self.missing_left, zero = flat("missing_left").astype(bool), flat("zero_missing").astype(bool)
        self.zero = zero if zero.any() else None
        self.start, count = flat("category_start").astype(np.int64), flat("category_words").astype(np.int64)
        self.bits = count * WORD_BITS if count.any() else None
        self.words = flat("words").astype(np.int64)
        self.categories = encoder.categories

    def follow(self, x: NDArray[Any], visit: Visit | None = None) -> NDArray[np.float64]:
        """The slots of rows (n, columns): (n, trees)."""
        x = x.astype(np.float64)
        for column in self.categories:  # a value that the column does not list is treated as missing
            x[:, column] = np.where(x[:, column] < 0, np.nan, x[:, column])
        n, columns, trees = len(x), x.shape[1], len(self.roots)
        gaps, values = bool(np.isnan(x).any()), x.reshape(-1)
        node = np.tile(self.roots, n)
        offset = np.repeat(np.arange(n, dtype=np.int64) * columns, trees)
        out = np.empty(n * trees, np.int64)
        active = np.arange(n * trees)
        while len(active):
            value = values[offset + self.feature[node]]
            left = value <= self.threshold[node]
            if self.bits is not None:
                left = self._in_set(node, value, left)
            if gaps:
                missing = np.isnan(value)
                left = np.where(missing, self.missing_left[node], left)
            if self.zero is not None:
                left = np.where(self.zero[node] & (np.abs(value) <= ZERO), self.missing_left[node], left)
            parent, node = node, self.children[2 * node + left]
            if visit is not None:
                visit(active, parent, node)
            ended = node < 0
            if ended.any():
                out[active[ended]] = -1 - node[ended]
                node, active, offset = node[~ended], active[~ended], offset[~ended]
        return out.reshape(n, trees).astype(np.float64)

    def _in_set(self, node: NDArray[Any], value: NDArray[Any], left: NDArray[Any]) -> NDArray[Any]:
        """The decisions `left`, with those of category nodes replaced."""
        assert self.bits is not None
        at = np.flatnonzero(self.bits[node])
        if not len(at):
            return left
        which, code = node[at], value[at]
        known = (code >= 0) & (code < self.bits[which])  # false for NaN
        code = np.where(known, code, 0).astype(np.int64)
        word = self.words[self.start[which] + code // WORD_BITS]
        left = left.copy()
        left[at] = known & (((word >> (code % WORD_BITS)) & 1) == 1)
        return left
