"""The rows that an estimator was fitted on, as `add_examples` takes them, and the shape of their inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amend.dataframes import RESERVED, is_frame, quote, to_table
from amend.errors import EstimatorUnsupported
from amend.sparse_matrices import is_sparse


@dataclass(frozen=True)
class Inputs:
    """The rows of an import."""

    names: list[str] | None
    """Names of the input columns of a frame; None if the inputs are an array."""
    shape: tuple[int, ...]
    """Shape of one row of an array; for a frame, the number of columns."""
    rows: int
    """Number of training rows."""
    total: float
    """Sum of the weights of the training rows."""
    table: Any
    """The rows as `add_examples` takes them, with ids and splits."""

    def count_classes(self, classes: Sequence[Any], weighted: bool) -> list[float]:
        """The number of training rows of each class, or the sum of their weights."""
        labels, splits, weights = (column_of(self.table, name) for name in ("y", "split", "weight"))
        counts = dict.fromkeys(classes, 0.0)
        for i, label in enumerate(labels or []):
            if (splits is None or splits[i] != "holdout") and label in counts:
                given = weights[i] if weighted and weights is not None else None
                counts[label] += 1.0 if given is None else float(given)
        return list(counts.values())

    def only(self, names: list[str]) -> Any:
        """The rows with only these inputs."""
        if self.names is None:
            return self.table
        return self.table.drop_columns([name for name in self.names if name not in names])


def column_of(table: Any, name: str) -> list[Any] | None:
    """A column of the rows as a list; None if they do not have it."""
    if isinstance(table, Mapping):
        found = table.get(name)
        return None if found is None else found.tolist() if hasattr(found, "tolist") else list(found)
    return table.column(name).to_pylist() if name in table.column_names else None


def describe_inputs(examples: Any, target: str, split: str = "train") -> Inputs:
    """Describe the rows of a frame, or of columns with an array `x`.

    Rows without ids are numbered. Rows without splits have the given one: all are used for training, as in the fit.
    """
    if is_frame(examples):
        return describe_frame(examples, target, split)
    if not isinstance(examples, Mapping) or "x" not in examples or target not in examples:
        raise EstimatorUnsupported("Pass the rows as a frame, or as columns: {'x': array, 'y': array}.")
    import numpy as np

    examples = {name: v.detach().cpu().numpy() if hasattr(v, "detach") else v for name, v in examples.items()}
    x = examples["x"] if is_sparse(examples["x"]) else np.asarray(examples["x"])
    if x.dtype == np.uint8:
        raise EstimatorUnsupported(
            "The service scales uint8 inputs to 0 to 1. Pass the numbers that the estimator was fitted on."
        )
    if not is_sparse(x) and x.dtype.kind == "f" and np.isnan(x).any():
        raise EstimatorUnsupported(
            "The rows have missing values, which an array cannot have. Pass the rows as a frame."
        )
    columns = {**examples, "x": x.astype(np.float32), "y": examples[target]}
    if target != "y":
        del columns[target]
    columns.setdefault("id", [f"{PREFIXES[split]}-{i}" for i in range(x.shape[0])])
    columns.setdefault("split", [split] * x.shape[0])
    return Inputs(None, x.shape[1:], *count_rows(columns["split"], columns.get("weight")), columns)


def count_rows(splits: Sequence[str | None], weights: Sequence[float | None] | None) -> tuple[int, float]:
    """The number of training rows, and the sum of their weights."""
    count = len(splits) - list(splits).count("holdout")
    if weights is None:
        return count, float(count)
    given = (weight for weight, split in zip(weights, splits, strict=False) if split != "holdout")
    return count, sum(1.0 if weight is None else float(weight) for weight in given)


PREFIXES = {"train": "row", "holdout": "holdout"}
"""Prefixes of the ids of rows without ids."""


def describe_frame(frame: Any, target: str, split: str) -> Inputs:
    import pyarrow as pa

    table = to_table(frame)
    if not table.num_rows:
        raise EstimatorUnsupported("The frame has no rows. Pass the rows that the estimator was fitted on.")
    if target not in table.column_names:
        raise EstimatorUnsupported(
            f"The frame has no column {target!r}. Pass the name of the target column as target=. Its columns are "
            f"{quote(table.column_names)}."
        )
    if target != "y" and "y" in table.column_names:  # no input: the name is reserved
        table = table.drop_columns("y")
    table = table.rename_columns(["y" if name == target else name for name in table.column_names])
    if "id" not in table.column_names:
        table = table.append_column("id", pa.array([f"{PREFIXES[split]}-{i}" for i in range(table.num_rows)]))
    if "split" not in table.column_names:
        table = table.append_column("split", pa.array([split] * table.num_rows))
    names = [name for name in table.column_names if name not in RESERVED]
    weights = table.column("weight").to_pylist() if "weight" in table.column_names else None
    return Inputs(names, (len(names),), *count_rows(table.column("split").to_pylist(), weights), table)
