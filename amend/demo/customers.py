"""The demo's table: a million synthetic customers of a telephone company, some of whom left. The same on every run."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

COUNT = 1_000_000
"""Customers that the model is first trained on."""
SOURCES = ("autumn campaign", "partner list")
SOURCE_COUNT = 30_000
"""Customers of each source, the last ones of the first training. The others have no source."""
PARTNER, PARTNER_SHARE_WRONG = SOURCES[-1], 0.9
"""The source in which most labels are wrong."""
DAYS = 7
DAILY_JOINERS, DAILY_LEAVERS = 1_000, 100
"""New customers of one day, and oldest customers, whose records are deleted that day."""
BAD_COUNT = 150_000
"""Rows of the bad batch, in which 1 stands for "stayed"."""
NEW_PHONE, NEW_PHONE_SHARE, NEW_PHONE_EFFECT = "Fir S", 0.7, 2.5
"""A phone with a defective battery, which goes on sale in that week: most new customers have it, and many leave."""
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
    "device": [*(f"{maker} {size}" for maker in ("Alder", "Birch", "Cedar", "Elm") for size in "SML"), NEW_PHONE],
}


class Customers:
    """All customers: of the first training (those of a source last), those who join in the week, the bad batch."""

    def __init__(self) -> None:
        self.week = slice(COUNT, COUNT + DAYS * DAILY_JOINERS)
        self.bad = slice(self.week.stop, self.week.stop + BAD_COUNT)
        first = COUNT - len(SOURCES) * SOURCE_COUNT
        self.sources = {
            name: slice(first + i * SOURCE_COUNT, first + (i + 1) * SOURCE_COUNT) for i, name in enumerate(SOURCES)
        }
        self.today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
        random, many = np.random.default_rng(7), self.bad.stop
        standing = random.standard_normal((len(NUMBERS), many), np.float32)
        self.numbers = {name: shape(z) for (name, (shape, _)), z in zip(NUMBERS.items(), standing, strict=True)}
        self.codes = {name: random.integers(0, len(values), many, np.int32) for name, values in CATEGORIES.items()}
        new_phone = len(CATEGORIES["device"]) - 1
        self.codes["device"] = random.integers(0, new_phone, many, np.int32)
        self.codes["device"][self.week][random.random(DAYS * DAILY_JOINERS) < NEW_PHONE_SHARE] = new_phone
        self.paperless = random.random(many) < 0.6
        logits = np.array([effect for _, effect in NUMBERS.values()]) @ standing + 0.2 * self.paperless - 1.4
        for name, codes in self.codes.items():
            effects = random.permutation(np.linspace(-0.8, 0.8, len(CATEGORIES[name])))
            if name == "device":
                effects[new_phone] = NEW_PHONE_EFFECT
            logits += effects[codes]
        self.left = random.random(many) < 1 / (1 + np.exp(-logits))
        self.left[self.sources[PARTNER]] ^= random.random(SOURCE_COUNT) < PARTNER_SHARE_WRONG
        self.left[self.bad] = ~self.left[self.bad]

    def joiners(self, day: int) -> slice:
        """The customers who join on a day of the week."""
        first = self.week.start + day * DAILY_JOINERS
        return slice(first, first + DAILY_JOINERS)

    def leavers(self, day: int) -> list[str]:
        """The customers whose records are deleted on a day of the week."""
        return [name_of(i) for i in range(day * DAILY_LEAVERS, (day + 1) * DAILY_LEAVERS)]

    def table(self, rows: slice, day: int | None = None) -> pa.Table:
        """The rows of some customers as an Arrow table; `day`: of the week, for the column `time`."""
        columns: dict[str, Any] = {"customer": [name_of(i) for i in range(rows.start, rows.stop)]}
        columns |= {name: values[rows] for name, values in self.numbers.items()}
        for name, codes in self.codes.items():
            columns[name] = pa.DictionaryArray.from_arrays(codes[rows], CATEGORIES[name])
        columns |= {"paperless": self.paperless[rows], "left": self.left[rows].astype(np.int64)}
        if day is not None:
            noon = self.today - timedelta(days=DAYS - day)  # the week ended yesterday
            columns["time"] = pa.array([noon] * (rows.stop - rows.start), pa.timestamp("s", "UTC"))
        return pa.table(columns)

    def design(self) -> NDArray[np.float64]:
        """The customers without the bad batch as a design matrix for scikit-learn: standardised numbers, and one column
        for each category.
        """
        rows = slice(0, self.week.stop)
        x = np.zeros((rows.stop, len(NUMBERS) + 1 + sum(map(len, CATEGORIES.values()))))
        for i, values in enumerate(self.numbers.values()):
            x[:, i] = (values[rows] - values[rows].mean()) / values[rows].std()
        place, each = len(NUMBERS), np.arange(len(x))
        x[:, place] = self.paperless[rows]
        for name, codes in self.codes.items():
            x[each, place + 1 + codes[rows]] = 1
            place += len(CATEGORIES[name])
        return x


def daily_changes() -> int:
    return DAILY_JOINERS + DAILY_LEAVERS


def name_of(customer: int) -> str:
    return f"customer-{customer}"
