"""Predictions as tables: one row for each input, with the columns of the REST API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amend.example_batches import require

if TYPE_CHECKING:
    from amend.responses import Prediction

FIELDS = {"mean": "mean", "score": "score", "class": "class_", "std": "std", "interval": "interval"}

PARTS = {"probabilities": "probability", "contributions": "contribution"}
"""Columns with several numbers for a row, and how the columns of a pandas frame that have one each begin."""


class PredictionTable:
    """Predictions of many rows, as the service sent them."""

    def __init__(self, table: Any, version: int | None) -> None:
        self.table = table
        self.version = version
        """Number of the version that predicted."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"PredictionTable({len(self)} rows, version={self.version}, columns={self.table.column_names})"

    def to_arrow(self) -> Any:
        """A pyarrow table."""
        return self.table

    def to_numpy(self) -> Any:
        """The predictions as numbers; see `Predictions.to_numpy`."""
        return numbers_of(self.table)

    def to_pandas(self) -> Any:
        """A pandas frame with one column for the probability of each class."""
        return frame_of(self.table)

    def _repr_html_(self) -> str:
        found: str = self.to_pandas()._repr_html_()
        return found


def table_of(outputs: list[Prediction]) -> Any:
    """An Arrow table of predictions."""
    pa = require("pyarrow")
    columns: dict[str, Any] = {}
    for name, field in FIELDS.items():
        values = [getattr(output, field) for output in outputs]
        if any(value is not None for value in values):
            texts = any(isinstance(value, str) for value in values)
            columns[name] = pa.array([str(v) if texts and v is not None else v for v in values])
    if outputs and outputs[0].labels is not None:
        texts = any(isinstance(value, str) for output in outputs for value in output.labels or [])
        lists = [[str(value) if texts else value for value in output.labels or []] for output in outputs]
        columns["labels"] = pa.array(lists, None if any(lists) else pa.list_(pa.string()))
    if outputs and outputs[0].probabilities is not None:
        columns["probabilities"] = pa.array([output.probabilities for output in outputs])
    if outputs and outputs[0].contributions is not None:
        made = [output.contributions or {} for output in outputs]
        same = all(one.keys() == made[0].keys() for one in made)  # words differ from text to text
        kind = None if same else pa.map_(pa.string(), pa.float64())
        columns["contributions"] = pa.array(made if same else [list(one.items()) for one in made], kind)
    return pa.table(columns)


def numbers_of(table: Any) -> Any:
    """(n, K) probabilities of the classes or labels, else (n,) means or scores."""
    np = require("numpy")
    if "probabilities" in table.column_names:
        shares = table.column("probabilities").combine_chunks()
        return np.stack([shares.field(i).to_numpy(zero_copy_only=False) for i in range(shares.type.num_fields)], 1)
    name = "score" if "score" in table.column_names else "mean"
    return table.column(name).to_numpy()


def frame_of(table: Any) -> Any:
    """A pandas frame; the probability of class ``c`` is in the column ``probability of c``, and the contribution of
    the input column ``a`` in ``contribution of a``."""
    pa, pandas = require("pyarrow"), require("pandas")
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column, prefix = table.column(name), PARTS.get(name)
        if prefix is None or not pa.types.is_struct(column.type):
            columns[name] = column.to_pandas()
            continue
        shares = column.combine_chunks()
        for i in range(shares.type.num_fields):
            columns[f"{prefix} of {shares.type.field(i).name}"] = shares.field(i).to_pandas()
    return pandas.DataFrame(columns)
