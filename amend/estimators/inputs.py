"""The rows that come with an estimator: what its inputs are, and the rows as `add_examples` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amend import batches
from amend.errors import EstimatorUnsupported
from amend.frames import RESERVED, is_frame
from amend.sparse import is_sparse


@dataclass(frozen=True)
class Inputs:
    """What the rows of an import are."""

    names: list[str] | None
    """Of a frame's columns that are inputs; None where the inputs are an array."""
    shape: tuple[int, ...]
    """Of one row of an array; of a frame, how many columns."""
    rows: int
    """Those that are trained on."""
    total: float
    """How many times they count together."""
    table: Any
    """As `add_examples` takes it, with ids and splits."""

    def only(self, names: list[str]) -> Any:
        """The rows with these inputs alone."""
        if self.names is None:
            return self.table
        return self.table.drop_columns([name for name in self.names if name not in names])


def describe_inputs(examples: Any, target: str) -> Inputs:
    """The rows of a frame, or of columns with an array `x`; ids are counted where there are none, and all rows are
    trained on unless they say otherwise: a holdout would make it another fit."""
    if is_frame(examples):
        return describe_frame(examples, target)
    if not isinstance(examples, Mapping) or "x" not in examples or target not in examples:
        raise EstimatorUnsupported("give the rows as a frame, or as columns: {'x': array, 'y': array}")
    import numpy as np

    x = examples["x"] if is_sparse(examples["x"]) else np.asarray(examples["x"])
    if x.dtype == np.uint8:
        raise EstimatorUnsupported("bytes would be read as 0 to 1: give the numbers that the estimator was fitted on")
    made = {**examples, "x": x.astype(np.float32), "y": examples[target]}
    if target != "y":
        del made[target]
    made.setdefault("id", [f"row-{i}" for i in range(x.shape[0])])
    made.setdefault("split", ["train"] * x.shape[0])
    return Inputs(None, x.shape[1:], *count_rows(made["split"], made.get("weight")), made)


def count_rows(splits: Sequence[str | None], weights: Sequence[float | None] | None) -> tuple[int, float]:
    """How many rows are trained on, and how many times they count together."""
    trained = [i for i, split in enumerate(splits) if split != "holdout"]
    if weights is None:
        return len(trained), float(len(trained))
    return len(trained), sum(1.0 if weights[i] is None else float(weights[i] or 0.0) for i in trained)


def describe_frame(frame: Any, target: str) -> Inputs:
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches.record_batches(frame) or ()))
    if target not in table.column_names:
        raise EstimatorUnsupported(f"the frame has no column {target!r}: target= says what the estimator predicts")
    table = table.rename_columns(["y" if name == target else name for name in table.column_names])
    if "id" not in table.column_names:
        table = table.append_column("id", pa.array([f"row-{i}" for i in range(table.num_rows)]))
    if "split" not in table.column_names:
        table = table.append_column("split", pa.array(["train"] * table.num_rows))
    names = [name for name in table.column_names if name not in RESERVED]
    weights = table.column("weight").to_pylist() if "weight" in table.column_names else None
    return Inputs(names, (len(names),), *count_rows(table.column("split").to_pylist(), weights), table)
