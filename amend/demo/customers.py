"""The demo's table: a million synthetic customers of a telephone company, some of whom left. The same on every run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

COUNT = 1_000_000
DAILY_JOINERS, DAILY_LEAVERS = 1_000, 100
"""New customers of one day, and oldest customers, whose records are deleted that day. Both differ from the rest:
because of a competitor's offer the new ones leave more often, and the oldest used and paid more."""
Shape = Callable[[NDArray[Any]], NDArray[Any]]
NUMBERS: dict[str, tuple[Shape, float]] = {
    # from a standard normal variable to the column's value, and the effect of the variable on leaving
    "tenure_months": (lambda z: np.round(24 * np.exp(0.8 * z)), -0.9),
    "monthly_bill": (lambda z: np.round(45 + 15 * z, 2), 0.5),
    "support_calls": (lambda z: np.floor(np.exp(0.7 * z)), 0.6),
    "data_gb": (lambda z: np.round(8 * np.exp(z), 1), -0.2),
    "late_payments": (lambda z: np.floor(np.exp(0.6 * z) / 1.5), 0.4),
    "minutes_abroad": (lambda z: np.round(np.maximum(0, 60 * z)), 0.1),
    "age": (lambda z: np.round(np.clip(47 + 15 * z, 18, 95)), -0.3),
    "phones": (lambda z: np.ceil(np.exp(0.5 * z)), -0.2),
}
CATEGORIES = {
    "plan": ["basic", "plus", "premium"],
    "contract": ["monthly", "one year", "two years"],
    "payment": ["card", "bank", "invoice", "cash"],
    "channel": ["shop", "web", "app", "phone", "partner"],
    "region": [f"region {i}" for i in range(1, 21)],
    "device": [f"{maker} {size}" for maker in ("Alder", "Birch", "Cedar", "Elm") for size in ("S", "M", "L")],
}


class Customers:
    """All customers: first those of the first day, then those who join on the second."""

    def __init__(self) -> None:
        random, many = np.random.default_rng(7), COUNT + DAILY_JOINERS
        standing = random.standard_normal((len(NUMBERS), many), np.float32)
        standing[:, :DAILY_LEAVERS] += 1
        self.numbers = {name: shape(z) for (name, (shape, _)), z in zip(NUMBERS.items(), standing, strict=True)}
        self.codes = {name: random.integers(0, len(values), many) for name, values in CATEGORIES.items()}
        self.paperless = random.random(many) < 0.6
        logits = np.array([effect for _, effect in NUMBERS.values()]) @ standing + 0.2 * self.paperless - 1.4
        for name, codes in self.codes.items():
            logits += random.permutation(np.linspace(-0.8, 0.8, len(CATEGORIES[name])))[codes]
        logits[COUNT:] += 1
        self.left = random.random(many) < 1 / (1 + np.exp(-logits))

    def table(self, first: int, last: int) -> pa.Table:
        """The rows of some customers as an Arrow table."""
        rows = slice(first, last)
        columns: dict[str, Any] = {"customer": [f"customer-{i}" for i in range(first, last)]}
        columns |= {name: values[rows] for name, values in self.numbers.items()}
        for name, codes in self.codes.items():
            columns[name] = pa.DictionaryArray.from_arrays(codes[rows].astype(np.int32), CATEGORIES[name])
        return pa.table({**columns, "paperless": self.paperless[rows], "left": self.left[rows].astype(np.int64)})

    def design(self) -> NDArray[np.float64]:
        """All customers as a design matrix for scikit-learn: standardised numbers, and one column for each category."""
        x = np.zeros((len(self.left), len(NUMBERS) + 1 + sum(map(len, CATEGORIES.values()))))
        for i, values in enumerate(self.numbers.values()):
            x[:, i] = (values - values.mean()) / values.std()
        place, rows = len(NUMBERS), np.arange(len(x))
        x[:, place] = self.paperless
        for name, codes in self.codes.items():
            x[rows, place + 1 + codes] = 1
            place += len(CATEGORIES[name])
        return x
