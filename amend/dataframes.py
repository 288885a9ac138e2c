"""Converts frames (pandas, polars, pyarrow) to inputs for the REST API, checked against the model's schema."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from amend import example_batches

RESERVED = ("id", "subject", "y", "weight", "split", "time", "source")
"""Columns of examples that are not inputs. `predict` ignores them, so a training frame can be passed unchanged."""


def is_frame(inputs: Any) -> bool:
    """Whether the inputs are a frame with columns. Arrays and single Arrow columns are not."""
    return hasattr(inputs, "columns") and not isinstance(inputs, Mapping)


def to_table(frame: Any) -> Any:
    """Convert a frame to an Arrow table."""
    import pyarrow as pa

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):  # as a whole: parts could get different types
        return example_batches.convert_frame(pa.Table, frame)
    batches = example_batches.record_batches(frame)
    if batches is None:
        raise TypeError(f"A {type(frame).__name__} is not a frame with Arrow support. Use pandas, polars or pyarrow.")
    collected = list(batches)
    if not collected:
        raise ValueError("The frame has no rows.")
    return pa.Table.from_batches(collected)


def name_columns(frame: Any, names: Mapping[str, str]) -> Any:
    """Rename columns to the names that examples use: ``{"y": "left"}`` renames ``left`` to ``y``."""
    table = to_table(frame)
    for column in names.values():
        if column not in table.column_names:
            raise ValueError(f"The frame has no column {column!r}. Its columns are {quote(table.column_names)}.")
    # One column may serve as both id and subject.
    renamed = {name: table.column(column) for name, column in names.items()}
    rest = table.drop_columns([name for name in table.column_names if name in {*names, *names.values()}])
    for name, column in renamed.items():
        rest = rest.append_column(name, column)
    return rest


def read_inputs(frame: Any, model: str, described: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The rows of a frame in parts. Raises ValueError if its columns are not those of the model's input."""
    batches = example_batches.record_batches(frame)
    if batches is None:
        raise TypeError(f"A {type(frame).__name__} has columns but no Arrow support. Use pandas, polars or pyarrow.")
    for batch in batches:
        names = pick_columns(list(batch.schema.names), model, described)
        for start in range(0, batch.num_rows, example_batches.BATCH_ROWS):
            part = batch.slice(start, example_batches.BATCH_ROWS)
            values = [part.column(name).to_pylist() for name in names]
            if described["kind"] == "table":
                values = [to_json(column, c) for column, c in zip(described["columns"], values, strict=True)]
                yield [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            else:
                yield values[0] if names == ["x"] or described["kind"] == "text" else list(zip(*values, strict=True))


def pick_columns(names: list[str], model: str, described: Mapping[str, Any]) -> list[str]:
    """The columns that are the model's inputs, in the model's order."""
    if described["kind"] != "table":
        found = [name for name in names if name not in RESERVED]
        width = described.get("dim")
        if described["kind"] == "text" and len(found) != 1:
            raise ValueError(f"{model} takes one column of texts, but the frame has {quote(found)}.")
        if found != ["x"] and width is not None and len(found) != width:
            raise ValueError(f"{model} takes {width} numbers, but the frame has {len(found)} columns: {quote(found)}.")
        return found
    wanted = [str(column["name"]) for column in described["columns"]]
    missing = [name for name in wanted if name not in names]
    if missing:
        near = difflib.get_close_matches(missing[0], [name for name in names if name not in wanted], n=1)
        hint = f" Is {near[0]!r} meant to be {missing[0]!r}?" if near else ""
        raise ValueError(f"The frame lacks {quote(missing)}.{hint} The columns of {model} are {quote(wanted)}.")
    return wanted


def to_input_table(inputs: Any, model: str, described: Mapping[str, Any]) -> Any:
    """The inputs of a model as an Arrow table, with the ids of a frame if it has any."""
    import pyarrow as pa

    if not is_frame(inputs):
        if described["kind"] == "text":
            return pa.table({"text": pa.array(check_rows(inputs), pa.string())})
        batches = list(example_batches.from_columns({"x": check_rows(inputs)}))
        return pa.Table.from_batches(batches) if batches else pa.table({"x": []})
    table = to_table(inputs)
    names = pick_columns(table.column_names, model, described)
    return table.select([*(["id"] if "id" in table.column_names else []), *names])


def check_rows(inputs: Any) -> Any:
    """Raise TypeError unless the inputs are rows: a list, an array or a sparse matrix."""
    if isinstance(inputs, str | bytes | Mapping) or not (hasattr(inputs, "__len__") or hasattr(inputs, "tocsr")):
        kind = type(inputs).__name__
        raise TypeError(f"Expected a list of inputs, an array or a frame, not a {kind}. Put a single input in a list.")
    return inputs


def quote(names: list[str], limit: int = 10) -> str:
    return ", ".join(map(repr, names[:limit])) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def to_json(column: Mapping[str, Any], values: list[Any]) -> list[Any]:
    """The values of a column as JSON values."""
    if column["type"] == "date":
        return [v.isoformat() if hasattr(v, "isoformat") else v for v in values]
    return [as_whole(v) for v in values] if has_whole_numbers(column) else values


def has_whole_numbers(column: Mapping[str, Any]) -> bool:
    return any(isinstance(value, int) for value in column.get("values") or ())


def as_whole(value: Any) -> Any:
    """Convert a whole float to int: pandas stores integers as floats if a value is missing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
