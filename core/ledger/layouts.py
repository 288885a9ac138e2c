"""Rows of the ledger as tensors at a position: rows older than a change of the input or target are converted.

A row is stored in the layout of the spec that was in force when it was added, and never rewritten. A reader names a
position and gets the row in the layout of the spec at that position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from torch import Tensor
from torch.nn.functional import one_hot

from core.kprior import Examples
from core.kprior.data.label_sets import recode_labels, to_matrix
from core.kprior.data.schema_conversion import Conversion, input_conversion, recode, target_conversion, target_then
from core.kprior.model.spec import Input, Spec, Target, dtype_of, frozen_encoder, shape_of
from core.kprior.model.target_scale import to_fitted
from core.ledger import bulk, encodings
from core.ledger.batch import stored_bytes
from core.ledger.spec_history import select_changes
from core.ledger.unseen_categories import convert, decode, without_nulls
from core.models.schema_changes import plain_part
from core.tables.ledger import ChangeKind, Example
from core.tables.models import Model

CHUNK_BYTES = 16 * 2**20
CHUNK_ROWS = 2000
"""A chunk has a quarter of CHUNK_BYTES, to fit into a processor's cache, but at least CHUNK_ROWS rows if they fit into
CHUNK_BYTES: each chunk also has a fixed cost, one matrix."""

Classes = tuple[float, ...] | None


class NotEncoded(RuntimeError):
    """A row has no features yet: a job must encode the rows that it reads first."""


class Unreadable(ValueError):
    """A row whose class no longer exists."""


@dataclass(frozen=True)
class LayoutChange:
    """A change of the input or the target, and the conversion of older rows."""

    position: int
    input: Conversion | None
    target: Classes

    def then(self, later: LayoutChange) -> LayoutChange:
        """The conversion by this change and a later one."""
        given = later.input
        if self.input is not None and later.input is not None:
            given = self.input.then(later.input, self.position)
        return LayoutChange(self.position, given or self.input, target_then(self.target, later.target))


def steps_until(session: Session, model_id: int, at: int, since: int = 0) -> list[LayoutChange]:
    """The changes of the input and the target in (since, at], in the order of their positions."""
    kinds = (ChangeKind.INPUT, ChangeKind.TARGET)
    found = session.execute(select_changes(), {"model": model_id, "at": at})
    changes = [(position, kind, value) for position, kind, value in found if kind in kinds]
    if not changes:
        return []
    spec = cast(dict[str, Any], {**session.scalars(select(Model.spec).where(Model.id == model_id)).one()})
    steps, earlier = [], dict[int, Input]()
    for position, kind, value in changes:
        before, part = spec[kind.value], cast(Any, value)
        if kind is ChangeKind.INPUT:
            earlier[position] = before
        if position > since:
            if kind is ChangeKind.INPUT:
                steps.append(LayoutChange(position, input_conversion(before, part, earlier), None))
            else:
                steps.append(LayoutChange(position, None, target_conversion(cast(Target, before), part)))
        spec[kind.value] = plain_part(part)
    return steps


@dataclass(frozen=True)
class ConvertedExamples(Examples):
    """Rows that are stored in another layout. Their digest is computed from the stored bytes."""

    stored: Tensor | None = None
    """(n, bytes) the stored y and x, each row padded to the longest."""
    sizes: Tensor | None = None
    """(n,) the size of each row in bytes, without padding."""


class Converted(NamedTuple):
    """Rows in the layout of a position."""

    y: NDArray[np.float64]
    """(n,) targets; NaN for classes that were removed."""
    x: NDArray[Any]
    """(n, width of one input)."""
    unseen: Sequence[str | None] | None
    """Texts of the values that are still unseen; None if there are none."""


class Layout:
    """The shape and types of a model's inputs and targets as tensors, and the conversion of older rows."""

    def __init__(self, spec: Spec, steps: Sequence[LayoutChange] = ()) -> None:
        self.spec, given = spec, spec["input"]
        self.dtype = dtype_of(given)
        self.shape = shape_of(given)
        self.target = target = spec["target"]
        self.classes = len(target["values"]) if target["kind"] == "classes" else 0
        self.labels = len(target["values"]) if target["kind"] == "labels" else 0
        encoder = frozen_encoder(spec)
        self.features = encoder["features"] if encoder else 0
        """Number of features of the model's frozen encoder; 0 if it has none."""
        self._encoded = bulk.EncodedBy(encodings.key_of(encoder)) if encoder else None
        row = (4 * self.features or math.prod(self.shape) * np.dtype(self.dtype).itemsize) + 64
        max_rows = CHUNK_BYTES // row
        self.chunk = max(1, min(max_rows, max(CHUNK_ROWS, max_rows // 4)))
        self.positions = np.array([step.position for step in steps], np.int64)
        self.steps: list[LayoutChange] = []
        """For each change, the combined conversion by it and all later ones, for rows that are older than it."""
        for step in reversed(steps):
            self.steps.insert(0, step.then(self.steps[0]) if self.steps else step)

    @classmethod
    def at(cls, session: Session, model_id: int, spec: Spec, at: int) -> Layout:
        """The layout at a position; `spec` is the spec in force there."""
        return cls(spec, steps_until(session, model_id, at))

    @property
    def stored_dtype(self) -> str | None:
        """The type of stored inputs; None if rows are stored in different layouts."""
        return None if self.steps else self.dtype

    @property
    def read_type(self) -> bulk.StoredType:
        """What `examples` needs to read: the features of the frozen encoder, or stored inputs."""
        return self._encoded or self.stored_dtype

    def examples(self, rows: bulk.Rows, skip_unencoded: bool = False) -> Examples:
        """Convert rows to tensors: inputs in their shape, targets in the family's mean space.

        Rows for which the encoder failed are left out, and with `skip_unencoded` those that have no features yet.
        """
        if self._encoded:
            return self._encoded_examples(rows, skip_unencoded)
        if not self.steps and self.labels:
            # without rows, as of a person whose examples were deleted before the erasure, -1 would be ambiguous
            width = rows.x.shape[1] * rows.x.itemsize if rows.x.ndim > 1 else 0
            bodies = np.ascontiguousarray(rows.x).view(np.uint8).reshape(len(rows.x), width)
            return self._with_stored(self._examples(rows, rows.y, rows.x), rows.y, bodies)
        if not self.steps:
            return self._examples(rows, rows.y, rows.x)
        y, x, _ = self.convert(rows.position, rows.y, rows.x, rows.unseen)
        converted = self._examples(rows, y, x)
        data = [head.tobytes() + body for head, body in zip(rows.y, rows.x, strict=True)]
        longest = max(map(len, data), default=0)
        padded = np.frombuffer(bytearray().join([d.ljust(longest, b"\0") for d in data]), np.uint8)
        sizes = torch.tensor([len(d) for d in data], dtype=torch.long)
        stored = torch.from_numpy(padded).reshape(len(data), longest)
        return ConvertedExamples(converted.key, converted.x, converted.y, converted.weight, stored=stored, sizes=sizes)

    def _encoded_examples(self, rows: bulk.Rows, skip_unencoded: bool) -> Examples:
        if not skip_unencoded and any(data is None for data in rows.x):
            raise NotEncoded("Some examples have not been encoded yet.")
        used = encodings.is_encoded(rows.x)
        weight = None if rows.weight is None else rows.weight[used]
        found = bulk.Rows(rows.position[used], rows.y[used], rows.x[used], weight)
        x, hashes = encodings.unpack(found.x.tolist(), self.features)
        return self._with_stored(self._examples(found, self._targets(found.position, found.y), x), found.y, hashes)

    def _with_stored(self, rows: Examples, y: NDArray[np.float64], bodies: NDArray[np.uint8]) -> ConvertedExamples:
        """Rows with their stored targets and (n, bytes) the bytes of their inputs, for the digest."""
        heads = np.ascontiguousarray(y, "<f8").view(np.uint8).reshape(len(rows), 8)
        stored = torch.from_numpy(np.concatenate([heads, bodies], 1))
        sizes = torch.full((len(rows),), stored.shape[1])
        return ConvertedExamples(rows.key, rows.x, rows.y, rows.weight, stored=stored, sizes=sizes)

    def _recode(self, classes: tuple[float, ...], y: NDArray[np.float64]) -> NDArray[np.float64]:
        return recode_labels(classes, y) if self.labels else recode(classes, y)

    def tensor_of(self, y: NDArray[np.float64]) -> Tensor:
        """Targets in the family's mean space: (n,) -> (n, K)."""
        if self.labels:
            return torch.from_numpy(to_matrix(y, self.labels))
        target = torch.from_numpy(to_fitted(self.target, y))
        return one_hot(target.long(), self.classes).double() if self.classes else target[:, None]

    def _targets(self, position: NDArray[np.int64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) stored targets, converted to this layout."""
        targets, older = y.astype(np.float64), np.searchsorted(self.positions, position)
        for age, step in enumerate(self.steps):
            if step.target is not None:
                targets[older == age] = self._recode(step.target, targets[older == age])
        return targets

    def _examples(self, rows: bulk.Rows, y: NDArray[np.float64], x: NDArray[Any]) -> Examples:
        if self.classes and np.isnan(y).any():
            raise Unreadable("Some examples have a class that was removed from the target.")
        weight = None if rows.weight is None else torch.from_numpy(rows.weight)
        shape = (self.features,) if self.features else self.shape
        return Examples(
            torch.from_numpy(rows.position), torch.from_numpy(x).reshape(-1, *shape), self.tensor_of(y), weight
        )

    def convert(
        self,
        position: NDArray[np.int64],
        y: NDArray[np.float64],
        x: Sequence[bytes] | NDArray[Any],
        unseen: Sequence[str | None] | None = None,
    ) -> Converted:
        """Convert the targets and inputs of stored rows, and the texts of their unseen values.

        The target of a class that was removed is NaN.
        """
        texts = [] if unseen is None else list(unseen)
        inputs, targets = np.empty((len(position), math.prod(self.shape)), self.dtype), y.astype(np.float64)
        older = np.searchsorted(self.positions, position)
        for age in np.unique(older).tolist():
            which = np.flatnonzero(older == age)
            raw = self._read(which, x)
            step = self.steps[age] if age < len(self.steps) else None
            if step is not None and step.input is not None:
                raw = step.input(raw, [decode(texts[i]) for i in which.tolist()] if texts else None)
                for i in which.tolist() if texts else ():
                    texts[i] = convert(step.input, texts[i])
            if step is not None and step.target is not None:
                targets[which] = self._recode(step.target, targets[which])
            inputs[which] = raw
        return Converted(targets, inputs, without_nulls(texts))

    def _read(self, which: NDArray[np.int64], x: Sequence[bytes] | NDArray[Any]) -> NDArray[Any]:
        """(n, width of one stored input) the inputs of some rows."""
        chosen = [x[i] for i in which.tolist()]
        if self.dtype == "object":
            texts = np.empty((len(chosen), 1), object)
            texts[:, 0] = chosen
            return texts
        return np.frombuffer(b"".join(chosen), self.dtype).reshape(len(which), -1)

    def content(self, position: int, y: float, x: bytes, unseen: str | None = None) -> tuple[float, bytes, str | None]:
        """Target, input and texts of unseen values of one stored row, converted to this layout."""
        if not self.steps or position > self.positions[-1] or not x:
            return y, x, unseen
        targets, inputs, texts = self.convert(np.array([position]), np.array([y]), [x], [unseen])
        return float(targets[0]), stored_bytes(inputs[0]), texts[0] if texts else None


def recovers_examples(session: Session, model_id: int, layout: Layout, conversion: Conversion, at: int) -> bool:
    """Whether training examples in force at a position have unseen values that a later change of the columns adds.

    `layout` is the layout at the position, and `conversion` the change of its columns.
    """
    ours = (Example.model_id == model_id, Example.unseen.is_not(None), Example.holdout.is_(False))
    in_force = or_(Example.removed.is_(None), Example.removed > at)
    texts = select(Example.unseen).where(*ours, in_force).distinct()
    for age, (after, until) in enumerate(pairwise([0, *layout.positions.tolist(), at])):
        earlier = layout.steps[age].input if age < len(layout.steps) else None
        for stored in session.scalars(texts.where(Example.position > after, Example.position <= until)):
            if conversion.recovered(decode(stored if earlier is None else convert(earlier, stored))):
                return True
    return False
