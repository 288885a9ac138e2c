"""Examples as they would be after a change: without some, with others, with other columns or classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.kprior import (
    AddData,
    ChangeInput,
    ChangeLoss,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    Data,
    Examples,
    RemoveData,
    Task,
)
from core.kprior.data.examples import concatenate
from core.kprior.data.label_sets import convert_label_sets
from core.kprior.data.random_samples import Draw
from core.kprior.data.schema_conversion import Conversion, input_conversion, recode, target_conversion
from core.kprior.model.spec import Spec, TableInput, Target
from core.kprior.passes.partitioned import PartitionedData, shards_of
from core.ledger.spec_history import with_part
from core.models.schema_changes import plain_part
from core.tables.ledger import ChangeKind

NO_ROWS = torch.zeros(0, dtype=torch.long)
Part = tuple[ChangeKind, Any]
"""A part of the spec and its new value."""


@dataclass(frozen=True)
class SpecChange:
    """A change of the spec, and what it does to rows."""

    spec: Spec
    """The spec after the change."""
    tasks: tuple[Task, ...] = ()
    input: Conversion | None = None
    classes: tuple[float, ...] | None = None

    @classmethod
    def of(cls, spec: Spec, parts: Sequence[Part]) -> SpecChange:
        """The change of a spec by the parts of a request that has been checked."""
        change = cls(spec)
        for kind, value in parts:
            plain: Any = plain_part(value)
            match kind:
                case ChangeKind.REGULARIZER:
                    task: Task = ChangeRegularizer(plain)
                case ChangeKind.ARCHITECTURE:
                    task = ChangeModel(plain)
                case ChangeKind.LOSS:
                    task = ChangeLoss(plain)
                case ChangeKind.INPUT:
                    conversion = input_conversion(change.spec["input"], value)
                    assert conversion is not None
                    task = ChangeInput(cast(TableInput, plain), conversion)
                    change = replace(change, input=conversion)
                case _:
                    classes = target_conversion(change.spec["target"], value)
                    if classes is None:  # only the names of the classes change
                        change = replace(change, spec=with_part(change.spec, kind, value))
                        continue
                    task = ChangeTarget(cast(Target, plain), classes)
                    change = replace(change, classes=classes)
            change = replace(change, spec=with_part(change.spec, kind, value), tasks=(*change.tasks, task))
        return change

    @property
    def changes_rows(self) -> bool:
        return self.input is not None or self.classes is not None

    def convert(self, rows: Examples) -> Examples:
        """Rows in terms of the new columns and classes."""
        x, y = rows.x, rows.y
        if self.input is not None:
            x = torch.from_numpy(np.asarray(self.input(x.numpy())))
        if self.classes is not None and self.spec["target"]["kind"] == "labels":
            y = convert_label_sets(y, self.classes, len(self.spec["target"]["values"]))
        elif self.classes is not None:
            codes = y.argmax(1) if y.shape[1] > 1 else y[:, 0]
            made = torch.from_numpy(recode(self.classes, codes.double().numpy()))
            count = len(self.spec["target"]["values"]) if self.spec["target"]["kind"] == "classes" else 1
            y = torch.nn.functional.one_hot(made.long(), count).double() if count > 1 else made[:, None]
        return Examples(rows.key, x, y, rows.weight)


class HypotheticalRows(PartitionedData):
    """Rows without some of them, converted, and followed by added ones."""

    def __init__(self, base: Data, gone: Tensor, change: SpecChange, added: Examples | None = None) -> None:
        self.base, self.gone, self.change, self.added = base, gone, change, added

    def shards(self) -> Sequence[Data]:
        parts: list[Data] = [HypotheticalRows(part, self.gone, self.change) for part in shards_of(self.base)]
        return parts if self.added is None or not len(self.added) else [*parts, [self.added]]

    def rows(self, key: Tensor) -> Examples:
        if isinstance(self.base, PartitionedData):
            found = [self.alter(self.base.rows(key[~torch.isin(key, self._added_keys)]))]
        else:
            found = [self.alter(chunk.take(torch.isin(chunk.key, key))) for chunk in self.base]
        if self.added is not None:
            found.append(self.added.take(torch.isin(self.added.key, key)))
        everything = concatenate([some for some in found if len(some)] or found[:1])
        return everything.take(torch.argsort(everything.key))

    @property
    def _added_keys(self) -> Tensor:
        return torch.zeros(0, dtype=torch.long) if self.added is None else self.added.key

    def __iter__(self) -> Iterator[Examples]:
        for chunk in self.base:
            kept = self.alter(chunk)
            if len(kept):
                yield kept
        if self.added is not None and len(self.added):
            yield self.added

    def alter(self, chunk: Examples) -> Examples:
        """Some rows as they would be."""
        if len(self.gone):
            chunk = chunk.take(~torch.isin(chunk.key, self.gone))
        return self.change.convert(chunk) if self.change.changes_rows and len(chunk) else chunk


@dataclass(frozen=True)
class Change:
    """What a preview is about. Nothing of it is stored in the ledger."""

    spec: SpecChange
    removed: Examples | None = None
    """Training rows to remove, in the present columns and classes."""
    removed_holdout: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions of holdout rows to remove."""
    added: Examples | None = None
    """Training rows to add, in the new columns and classes."""
    added_holdout: Examples | None = None
    unknown: Sequence[str] = ()
    """What was to be removed and does not exist."""
    erases: bool = False
    """Whether the rows are removed by an erasure, after which the weights must not depend on them at all."""
    subjects: Mapping[int, bytes] = field(default_factory=dict)
    """The subjects of added rows, by position."""

    @property
    def gone(self) -> torch.Tensor:
        return NO_ROWS if self.removed is None else self.removed.key

    @property
    def tasks(self) -> list[Task]:
        tasks: list[Task] = []
        if self.added is not None and len(self.added):
            tasks.append(AddData([self.added]))
        if self.removed is not None and len(self.removed):
            tasks.append(RemoveData([self.spec.convert(self.removed)]))
        return [*tasks, *self.spec.tasks]


def draw_without(draw: Draw, gone: Tensor, change: SpecChange) -> Draw:
    """Draws rows that would remain, as they would be."""

    def drawn(count: int, seed: int) -> Examples:
        rows = draw(count + len(gone), seed)
        rows = rows.take(~torch.isin(rows.key, gone))
        rows = rows.take(torch.arange(min(count, len(rows))))
        return change.convert(rows) if change.changes_rows and len(rows) else rows

    return drawn
