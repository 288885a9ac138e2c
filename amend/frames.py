"""A frame of inputs (pandas, polars, pyarrow) -> inputs as REST has them, checked against the model's own schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from amend import batches
from amend.sparse import densify

RESERVED = ("id", "subject", "y", "weight", "split")
"""Columns of examples that are not inputs: predicting for a frame that was trained on need not drop them."""


def is_frame(inputs: Any) -> bool:
    """Whether inputs have columns; arrays, and single columns that speak Arrow, have not."""
    return hasattr(inputs, "columns") and not isinstance(inputs, Mapping)


def to_table(frame: Any) -> Any:
    """A frame as one Arrow table."""
    import pyarrow as pa

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):  # whole: parts may have other types
        return pa.Table.from_pandas(densify(frame), preserve_index="id" in frame.index.names)
    pieces = batches.record_batches(frame)
    if pieces is None:
        raise TypeError(f"a {type(frame).__name__} is no frame that speaks Arrow")
    found = list(pieces)
    if not found:
        raise ValueError("the frame has no rows")
    return pa.Table.from_batches(found)


def name_columns(frame: Any, names: Mapping[str, str]) -> Any:
    """A frame whose columns have the names that examples give them: ``{"y": "left"}`` makes of left y."""
    table = to_table(frame)
    for column in names.values():
        if column not in table.column_names:
            raise ValueError(f"the frame has no column {column!r}; it has {quote(table.column_names)}")
    # one column may be both id and subject
    given = {name: table.column(column) for name, column in names.items()}
    rest = table.drop_columns([name for name in table.column_names if name in {*names, *names.values()}])
    for name, column in given.items():
        rest = rest.append_column(name, column)
    return rest


def read_inputs(frame: Any, model: str, described: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The rows of a frame, some thousands at once; ValueError if its columns are not those of the model's inputs."""
    pieces = batches.record_batches(frame)
    if pieces is None:
        raise TypeError(f"a {type(frame).__name__} has columns, but does not speak Arrow")
    for piece in pieces:
        names = pick_columns(list(piece.schema.names), model, described)
        for start in range(0, piece.num_rows, batches.BATCH_ROWS):
            some = piece.slice(start, batches.BATCH_ROWS)
            values = [some.column(name).to_pylist() for name in names]
            if described["kind"] == "table":
                values = [to_json(column, c) for column, c in zip(described["columns"], values, strict=True)]
                yield [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            else:
                yield values[0] if names == ["x"] else list(zip(*values, strict=True))


def pick_columns(names: list[str], model: str, described: Mapping[str, Any]) -> list[str]:
    """The columns that are the model's inputs, in its order."""
    if described["kind"] != "table":
        found = [name for name in names if name not in RESERVED]
        width = described.get("dim")
        if found != ["x"] and width is not None and len(found) != width:
            raise ValueError(f"{model} takes {width} numbers; the frame has {len(found)} columns: {quote(found)}")
        return found
    wanted = [str(column["name"]) for column in described["columns"]]
    missing = [name for name in wanted if name not in names]
    unknown = [name for name in names if name not in (*wanted, *RESERVED)]
    if missing or unknown:
        problems = [f"the frame lacks {quote(missing)}"] if missing else []
        problems += [f"{model} does not know {quote(unknown)}"] if unknown else []
        raise ValueError(f"{'; '.join(problems)}; the columns of {model} are {quote(wanted)}")
    return wanted


def quote(names: list[str], limit: int = 10) -> str:
    return ", ".join(map(repr, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def to_json(column: Mapping[str, Any], values: list[Any]) -> list[Any]:
    """The values of a column as JSON has them."""
    if column["type"] == "date":
        return [v.isoformat() if hasattr(v, "isoformat") else v for v in values]
    return [as_whole(v) for v in values] if has_whole_numbers(column) else values


def has_whole_numbers(column: Mapping[str, Any]) -> bool:
    return any(isinstance(value, int) for value in column.get("values") or ())


def as_whole(value: Any) -> Any:
    """A whole number as such: pandas makes floats of them where one is missing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
