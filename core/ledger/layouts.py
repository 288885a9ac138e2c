"""Rows of the ledger as tensors at a position: rows older than a change of the input or target are converted.

A row is stored in the layout of the spec that was in force when it was added, and never rewritten. A reader names a
position and gets the row in the layout of the spec at that position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session
from torch import Tensor

from core.kprior import Examples
from core.kprior.data.conversion import Conversion, input_conversion, recode, target_conversion, target_then
from core.kprior.model.spec import Input, Spec, Target, dtype_of, shape_of
from core.ledger import bulk
from core.models.schema_changes import plain_part
from core.tables.ledger import Change, ChangeKind
from core.tables.models import Model

CHUNK_BYTES = 16 * 2**20
CHUNK_ROWS = 2000
"""A chunk has a quarter of CHUNK_BYTES, to fit into a processor's cache, but at least CHUNK_ROWS rows if they fit into
CHUNK_BYTES: each chunk also has a fixed cost, one matrix."""

Classes = tuple[float, ...] | None


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
    ours = (Change.model_id == model_id, Change.value.is_not(None), Change.last <= at, Change.kind.in_(kinds))
    changes = session.execute(select(Change.last, Change.kind, Change.value).where(*ours).order_by(Change.last)).all()
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


class Layout:
    """The shape and types of a model's inputs and targets as tensors, and the conversion of older rows."""

    def __init__(self, spec: Spec, steps: Sequence[LayoutChange] = ()) -> None:
        self.spec, given = spec, spec["input"]
        self.dtype = dtype_of(given)
        self.shape = shape_of(given)
        target = spec["target"]
        self.classes = len(target["values"]) if target["kind"] == "classes" else 0
        row = math.prod(self.shape) * np.dtype(self.dtype).itemsize + 64
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

    def examples(self, rows: bulk.Rows) -> Examples:
        """Convert rows to tensors: inputs in their shape, targets in the family's mean space."""
        if not self.steps:
            return self._examples(rows, rows.y, rows.x)
        converted = self._examples(rows, *self.convert(rows.position, rows.y, rows.x))
        data = [head.tobytes() + body for head, body in zip(rows.y, rows.x, strict=True)]
        longest = max(map(len, data), default=0)
        padded = np.frombuffer(bytearray().join([d.ljust(longest, b"\0") for d in data]), np.uint8)
        sizes = torch.tensor([len(d) for d in data], dtype=torch.long)
        stored = torch.from_numpy(padded).reshape(len(data), longest)
        return ConvertedExamples(converted.key, converted.x, converted.y, converted.weight, stored=stored, sizes=sizes)

    def _examples(self, rows: bulk.Rows, y: NDArray[np.float64], x: NDArray[Any]) -> Examples:
        target = torch.from_numpy(y)
        if self.classes:
            if np.isnan(y).any():
                raise Unreadable("Some examples have a class that was removed from the target.")
            target = torch.nn.functional.one_hot(target.long(), self.classes).double()
        else:
            target = target[:, None]
        weight = None if rows.weight is None else torch.from_numpy(rows.weight)
        return Examples(torch.from_numpy(rows.position), torch.from_numpy(x).reshape(-1, *self.shape), target, weight)

    def convert(
        self, position: NDArray[np.int64], y: NDArray[np.float64], x: Sequence[bytes] | NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Convert the targets and inputs of stored rows. The target of a class that was removed is NaN."""
        inputs, targets = np.empty((len(position), math.prod(self.shape)), self.dtype), y.astype(np.float64)
        older = np.searchsorted(self.positions, position)
        for age in np.unique(older).tolist():
            which = np.flatnonzero(older == age)
            raw = np.frombuffer(b"".join([x[i] for i in which.tolist()]), self.dtype).reshape(len(which), -1)
            step = self.steps[age] if age < len(self.steps) else None
            if step is not None and step.input is not None:
                raw = step.input(raw)
            if step is not None and step.target is not None:
                targets[which] = recode(step.target, targets[which])
            inputs[which] = raw
        return targets, inputs

    def content(self, position: int, y: float, x: bytes) -> tuple[float, bytes]:
        """Target and input of one stored row, converted to this layout."""
        if not self.steps or position > self.positions[-1] or not x:
            return y, x
        targets, inputs = self.convert(np.array([position]), np.array([y]), [x])
        return float(targets[0]), inputs[0].tobytes()
