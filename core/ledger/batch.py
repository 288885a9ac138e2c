"""A batch of examples as columns: the result of parsing any request format, and the input of bulk inserts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.ledger.holdout_split import Split, choose_holdout, draw_by_subject, draw_numbers
from core.models.policy import HoldoutPolicy


@dataclass(frozen=True)
class Predicted:
    """What the champion, and the policy's challenger, predict for n examples when they arrive."""

    version: int
    mean: NDArray[np.float64]
    """(n, outputs); NaN for examples that were not predicted."""
    challenger: int | None = None
    challenger_mean: NDArray[np.float64] | None = None

    def take(self, index: Sequence[int]) -> Predicted:
        """The predictions for the examples at `index`."""
        challenged = None if self.challenger_mean is None else self.challenger_mean[index]
        return Predicted(self.version, self.mean[index], self.challenger, challenged)


@dataclass(frozen=True)
class Batch:
    """n examples that have been validated against the model's spec."""

    ids: pa.StringArray
    """An Arrow array: creating a Python string for each id would cost more than all other columns."""
    subjects: Sequence[bytes | None]
    """Keyed hashes of the subjects."""
    x: NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.object_]
    """(n, width of one input), contiguous; (n, 1) stored texts (`core/kprior/model/text_storage.py`)."""
    y: NDArray[np.float64]
    """(n,) targets as numbers; NaN for examples without a label."""
    splits: Sequence[Split]
    layout_position: int = 0
    """Position of the last change of the input or the target when the batch was parsed."""
    weights: NDArray[np.float64] | None = None
    """The weight of each example, NaN where none was given; None if no example has one."""
    times: NDArray[np.datetime64] | None = None
    """(n,) event times in microseconds, UTC, NaT where none was given; None if no example has one."""
    sources: Sequence[str | None] | None = None
    """Where each example came from; None if no example has a source."""
    unseen: Sequence[str | None] | None = None
    """Texts of each example's unseen category values (`unseen_categories`); None if no example has any."""
    predicted: Predicted | None = None
    """Predictions to store with examples without a label."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Sequence[int]) -> Batch:
        """The examples at `index`."""
        return Batch(
            self.ids.take(pa.array(index, pa.int64())),
            [self.subjects[i] for i in index],
            self.x[index],
            self.y[index],
            [self.splits[i] for i in index],
            self.layout_position,
            None if self.weights is None else self.weights[index],
            None if self.times is None else self.times[index],
            None if self.sources is None else [self.sources[i] for i in index],
            None if self.unseen is None else [self.unseen[i] for i in index],
            None if self.predicted is None else self.predicted.take(index),
        )

    @cached_property
    def unlabelled(self) -> NDArray[np.bool_]:
        """(n,) which examples have no label."""
        return np.isnan(self.y)

    def times_or(self, otherwise: Sequence[datetime | None]) -> NDArray[np.datetime64] | None:
        """The event time of each example, or the other one where none was given."""
        given = np.full(len(self), np.datetime64("NaT"), "M8[us]") if self.times is None else self.times
        filled = np.where(np.isnat(given), to_times(otherwise), given)
        return None if np.isnat(filled).all() else filled

    def sources_or(self, otherwise: Sequence[str | None]) -> list[str | None] | None:
        """The source of each example, or the other one where none was given."""
        given = [None] * len(self) if self.sources is None else self.sources
        filled = [other if own is None else own for own, other in zip(given, otherwise, strict=True)]
        return filled if any(source is not None for source in filled) else None

    @cached_property
    def stored_weights(self) -> list[float | None] | None:
        """The weights to store; None if all are 1.

        A weight of 1 is stored as null, also next to others: a row must not show whether another one, which may have
        been erased since, had a weight.
        """
        if self.weights is None:
            return None
        weights = [None if weight == 1 or math.isnan(weight) else weight for weight in self.weights.tolist()]
        return weights if any(weight is not None for weight in weights) else None

    def weights_or(self, defaults: Sequence[float | None]) -> list[float]:
        """The weight of each example; its default where none was given, and 1 where the default is None as well."""
        given = [math.nan] * len(self) if self.weights is None else self.weights.tolist()
        weights = [default if math.isnan(own) else own for own, default in zip(given, defaults, strict=True)]
        return [1.0 if weight is None else weight for weight in weights]

    @cached_property
    def features(self) -> list[bytes]:
        """The bytes of each row of x."""
        if self.x.dtype == object:
            return [stored for (stored,) in self.x.tolist()]
        data, size = self.x.tobytes(), self.x.shape[1] * self.x.itemsize
        return [data[i : i + size] for i in range(0, len(data), size)]

    @cached_property
    def draws(self) -> NDArray[np.uint64]:
        """(n,) a pseudorandom number for each example that depends only on its id."""
        return draw_numbers(self.ids)

    @cached_property
    def subject_draws(self) -> NDArray[np.uint64]:
        """(n,) the same for all examples of a subject; examples without a subject have the number of their id."""
        return draw_by_subject(self.draws, self.subjects)

    def holdouts(self, policy: HoldoutPolicy) -> NDArray[np.bool_]:
        """(n,) which examples are in the holdout."""
        if None not in self.splits:
            return np.array(self.splits, bool)
        draws = self.subject_draws if policy.by == "subject" else self.draws
        return choose_holdout(draws, self.splits, policy.fraction)


def stored_bytes(x: NDArray[Any]) -> bytes:
    """The bytes of one input, as it is stored."""
    stored: bytes = x.item() if x.dtype == object else x.tobytes()
    return stored


def to_times(moments: Sequence[datetime | None]) -> NDArray[np.datetime64]:
    """(n,) times in microseconds, UTC; NaT where there is none."""
    naive = [None if moment is None else moment.astimezone(UTC).replace(tzinfo=None) for moment in moments]
    return np.array(naive, "M8[us]")
