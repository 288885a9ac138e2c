"""What a model is, read from a frame (pandas, polars, pyarrow): its columns, their kinds and categories, its target.

`create_model` and ``amend models create --from`` call it; `read_schema` shows what they would read. pyarrow is imported
only when it is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amend.frames import RESERVED, quote, to_table

LOGGER = logging.getLogger("amend")
MAX_VALUES = 1000
"""Distinct texts of a column that is taken as a category; with more it is rather a name or a note."""
MIN_ROWS = 10
"""With no more rows than this, texts may all differ by chance."""
MAX_CLASSES = 20
"""Distinct whole numbers of a target that are taken as classes; with more it is a number."""
MAX_SHOWN_VALUES = 5
OTHER = "other"
"""The only value of a category that has none: whatever comes is unseen."""
TARGETS = ("binary", "classes", "number", "count")


@dataclass(frozen=True)
class FrameSchema:
    """What was read from a frame; as text, for people."""

    rows: int
    input: dict[str, Any]
    target: dict[str, Any]
    target_column: str
    left_out: list[str]
    notes: list[str] = field(default_factory=list)
    """What should be looked at: columns with one value or none, rows without a target."""

    def __str__(self) -> str:
        columns = [(repr(c["name"]), c["type"], show_values(c.get("values"))) for c in self.input["columns"]]
        name, kind = (max(len(row[i]) for row in columns) for i in (0, 1))
        lines = [f"{len(columns)} columns, from {self.rows} rows:"]
        lines += [f"  {row[0]:{name}}  {row[1]:{kind}}  {row[2]}".rstrip() for row in columns]
        lines.append(f"target {self.target_column!r}: {self.target['kind']} {show_values(self.target.get('values'))}")
        if self.left_out:
            lines.append(f"left out: {quote(self.left_out)}")
        return "\n".join(line.rstrip() for line in lines + self.notes)


def show_values(values: Sequence[Any] | None) -> str:
    if values is None:
        return ""
    more = f" and {len(values) - MAX_SHOWN_VALUES} more" if len(values) > MAX_SHOWN_VALUES else ""
    return ", ".join(map(str, values[:MAX_SHOWN_VALUES])) + more


def read_schema(
    frame: Any,
    target: str,
    *,
    id: str | None = None,
    subject: str | None = None,
    weight: str | None = None,
    target_kind: str | None = None,
) -> FrameSchema:
    """Read input and target of a model from a frame.

    Numbers, booleans, dates and timestamps are columns of that type; texts and pandas' categoricals are categories. The
    target is ``binary`` if it is boolean or 0 and 1, ``classes`` if it is text or has few whole numbers, else
    ``number``, unless ``target_kind`` says otherwise. The columns ``id``, ``subject`` and ``weight`` are left out, and
    so are those that mean something else in examples (`frames.RESERVED`).

    ValueError names a column that cannot be read, and says what to do.
    """
    table = to_table(frame)
    for name in filter(None, (target, id, subject, weight)):
        if name not in table.column_names:
            raise ValueError(f"the frame has no column {name!r}; it has {quote(table.column_names)}")
    if target_kind not in (None, *TARGETS):
        raise ValueError(f"target_kind is {target_kind!r}; it can be {', '.join(TARGETS)}")
    apart = {target, id, subject, weight, *RESERVED}
    features = [name for name in table.column_names if name not in apart]
    if not features:
        raise ValueError("the frame has no column that could be a feature")
    notes: list[str] = []
    if weight is None and "weight" in table.column_names and target != "weight":
        notes.append("'weight' is how many times a row counts: rename the column, if it is a feature")
    columns = [read_column(name, table.column(name), notes) for name in features]
    described = read_target(target, table.column(target), target_kind, notes)
    left_out = [name for name in table.column_names if name in apart and name != target]
    return FrameSchema(table.num_rows, {"kind": "table", "columns": columns}, described, target, left_out, notes)


def describe_frame(frame: Any, target: Any, **columns: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Input and target, as `read_schema` reads them; what should be looked at is logged."""
    if not isinstance(target, str):
        raise TypeError("with a frame, the target is the name of one of its columns")
    found = read_schema(frame, target, **columns)
    for note in found.notes:
        LOGGER.warning("%s", note)
    return found.input, found.target


def read_column(name: str, column: Any, notes: list[str]) -> dict[str, Any]:
    """A column of the input."""
    kind = type_of(name, column.type)
    empty = column.null_count == len(column)
    described: dict[str, Any] = {"name": name, "type": kind}
    if kind == "category":
        described["values"] = read_values(name, column)
    if empty and described.get("values") == [OTHER]:
        notes.append(f"{name!r} has no values: all that come are taken as other")
    elif empty:
        notes.append(f"{name!r} has no values: it is taken for a {kind} column; drop it, if it is none")
    elif len(column.unique().drop_null()) == 1:
        notes.append(f"{name!r} has the same value in all rows")
    return described


def type_of(name: str, kind: Any) -> str:
    """The type of a column, by that of Arrow."""
    import pyarrow.types as types

    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_dictionary(kind) or is_text(kind):
        return "category"
    advice = "make it numbers, booleans, dates or text, or drop it"
    raise ValueError(f"the column {name!r} is of the type {kind}: {advice}")


def read_target(name: str, column: Any, wanted: str | None, notes: list[str]) -> dict[str, Any]:
    """The target, of the kind that is wanted, or of the one that its values suggest."""
    import pyarrow.types as types

    if column.null_count == len(column):
        raise ValueError(f"the target {name!r} has no values")
    if column.null_count:
        notes.append(f"the target {name!r} is missing in {column.null_count} rows: they cannot be examples")
    kind = column.type
    known = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    if not (known or is_text(kind) or types.is_dictionary(kind)):
        raise ValueError(f"the target {name!r} is of the type {kind}: make it numbers, booleans or text")
    if wanted is not None and wanted != "classes":
        return {"kind": wanted}
    if types.is_dictionary(kind) or is_text(kind):
        return {"kind": "classes", "values": check_classes(name, read_values(name, column, target=True))}
    if types.is_boolean(kind):
        return {"kind": "classes", "values": ["false", "true"]} if wanted else {"kind": "binary"}
    values = sorted(column.drop_null().unique().to_pylist())
    if wanted is None and set(values) <= {0, 1}:
        return {"kind": "binary"}
    few = types.is_integer(kind) and len(values) <= MAX_CLASSES
    if wanted is None and not few:
        return {"kind": "number"}
    if not all(float(value).is_integer() for value in values):
        raise ValueError(f"the target {name!r} has fractions, which are no classes: target_kind can be 'number'")
    return {"kind": "classes", "values": check_classes(name, [int(value) for value in values])}


def read_values(name: str, column: Any, target: bool = False) -> list[Any]:
    """The values of a category, or the classes of a target."""
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        return read_categories(name, column)
    return read_texts(name, column, target)


def read_categories(name: str, column: Any) -> list[int | str]:
    """The values of a categorical, in their order, seen or not."""
    values: dict[Any, None] = {}
    for chunk in column.chunks:
        values |= dict.fromkeys(chunk.dictionary.to_pylist())
    made: list[int | str] = []
    for value in values:
        if isinstance(value, bool):
            made.append(str(value).lower())
        elif isinstance(value, float) and value.is_integer():
            made.append(int(value))
        elif isinstance(value, int | str):
            made.append(value)
        elif value is not None:
            raise ValueError(f"the categories of {name!r} are neither text nor whole numbers")
    return made or [OTHER]


def read_texts(name: str, column: Any, target: bool = False) -> list[str]:
    """The distinct texts of a column, in the order of the alphabet; an empty one is a missing value."""
    present = column.drop_null()
    values = sorted(value for value in present.unique().to_pylist() if value)
    if len(values) > MAX_VALUES or len(values) == len(present) > MIN_ROWS:
        many = f"the column {name!r} has {len(values)} different texts in {len(present)} rows"
        if target:
            raise ValueError(f"{many}, too many for classes: choose another target")
        advice = "drop it, or name it as id= or subject=, or keep its frequent values and make it a categorical"
        raise ValueError(f"{many}, too many for a category: {advice} (all others are taken as other)")
    return values or [OTHER]


def check_classes(name: str, values: list[Any]) -> list[Any]:
    if len(values) < 2:
        raise ValueError(f"the target {name!r} has one value only: a model needs two at least")
    return values


def is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))
