"""Contributions of columns to the outputs of boosted trees, along the path of a row in each tree.

The value of a node is the mean weight of the leaves below it; each leaf counts by the curvature of the examples in it.
A step from a node to its child changes the value, and the change is a contribution of the column that the node splits.
The steps of a path add up to the weight of its leaf less the value of the root, which is part of the intercept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..kprior.model.tree_splits import PAIRS, LeafEncoder

Numbers = NDArray[Any]


class LeafContributions:
    """Contributions of columns, for weights (K, D) of the leaves and a constant."""

    def __init__(self, encoder: LeafEncoder, weight: Numbers, mass: Tensor | None) -> None:
        """Without the `mass` of the leaves (D - 1,), all of them count the same."""
        self.nodes = encoder.nodes
        self.trees, size = encoder.feature.shape
        self.columns = encoder.raw_shape[0]
        self.leaves, self.bias = weight[:, :-1], weight[:, -1]
        leaf_mass = np.ones(self.leaves.shape[1]) if mass is None else mass.numpy()
        self.values, below = np.zeros((len(weight), self.trees * size)), np.zeros(self.trees * size)
        children = self.nodes.children.reshape(self.trees, size, 2)
        for i in reversed(range(size)):  # children come after their parents
            child, own = children[:, i], self.nodes.roots + i
            inner = child >= 0
            mass_of = np.where(inner, below[child.clip(0)], leaf_mass[(-1 - child).clip(0)])
            below[own] = mass_of.sum(1)
            share = np.divide(mass_of, below[own, None], out=np.full(mass_of.shape, 0.5), where=below[own, None] > 0)
            self.values[:, own] = (self._values_of(slice(None), child) * share).sum(-1)

    def __call__(self, x: Numbers, output: NDArray[np.intp]) -> Numbers:
        """For raw inputs (n, columns) and the output to explain for each: (n, columns + 1), the intercept last."""
        parts, step = [], max(1, PAIRS // self.trees)
        for start in range(0, len(x), step):
            parts.append(self._follow(x[start : start + step], output[start : start + step]))
        constant = self.bias + self.values[:, self.nodes.roots].sum(1)
        return np.column_stack([np.concatenate(parts), constant[output]])

    def _follow(self, x: Numbers, output: NDArray[np.intp]) -> Numbers:
        made = np.zeros(len(x) * self.columns)

        def visit(pair: NDArray[np.int64], parent: NDArray[np.int64], child: NDArray[np.int64]) -> None:
            row = pair // self.trees
            change = self._values_of(output[row], child) - self.values[output[row], parent]
            made[:] += np.bincount(row * self.columns + self.nodes.feature[parent], change, minlength=len(made))

        self.nodes.follow(x, visit)
        return made.reshape(len(x), self.columns)

    def _values_of(self, output: Any, child: NDArray[np.int64]) -> Numbers:
        """The values of nodes, or the weights of leaves, as `TreeNodes.children` numbers them."""
        inner: Numbers = self.values[output, child.clip(0)]
        return np.where(child >= 0, inner, self.leaves[output, (-1 - child).clip(0)])
