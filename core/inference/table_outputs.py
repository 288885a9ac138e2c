"""Outputs of a linear model of a table, computed without indicators.

Most of a table's encoded inputs are zero. Looking up the weights of categories is several times as fast as a product
with their indicators, and NumPy needs no other threads for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..kprior.model.input_encoders import Category, TableEncoder

Numbers = NDArray[Any]


class TableOutputs:
    """f = W (z, 1) for the encoded inputs z of a table."""

    def __init__(self, encoder: TableEncoder, weight: Tensor) -> None:
        """`weight` is W, (K, D + 1)."""
        turned, n = weight.double().numpy().T, len(encoder.numbers)
        self.numbers = encoder.numbers
        self.mean, self.scale = encoder.mean.numpy(), encoder.scale.numpy()
        self.slopes, self.flags, self.bias = turned[:n], turned[n : 2 * n], turned[-1]
        self.categories: list[tuple[Category, Numbers]] = []
        start = 2 * n
        for category in encoder.categories:
            self.categories.append((category, turned[start : start + category.width].copy()))
            start += category.width

    def __call__(self, x: Numbers) -> Numbers:
        """Raw inputs (n, columns) -> (n, K)."""
        x = x.astype(np.float64, copy=False)
        number = x[:, self.numbers]
        missing = np.isnan(number)
        z = (number - self.mean) / self.scale
        f: Numbers = self.bias[None].repeat(len(x), 0)
        if missing.any():
            z[missing] = 0.0
            f += missing @ self.flags
        for column, slope in zip(z.T, self.slopes, strict=True):
            f += column[:, None] * slope
        for category, weights in self.categories:
            f += weights[places(category, x[:, category.index])]
        return f


def places(category: Category, code: Numbers) -> Numbers:
    """Indices of the indicators that are 1: (n,) -> (n,); as `Category.indicate`."""
    unknown = ~((code >= 0) & (code < category.size))
    if not unknown.any():
        return code.astype(np.intp)
    found = np.where(unknown, 0, code).astype(np.intp)
    found[unknown] = np.where(np.isnan(code[unknown]), category.missing, category.other)
    return found
