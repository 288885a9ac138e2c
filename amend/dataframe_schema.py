"""Infers the input and target of a model from a frame (pandas, polars, pyarrow).

Used by `create_model` and ``amend models create --from``; `read_schema` shows what they would infer. pyarrow is
imported only when needed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amend.dataframes import RESERVED, quote, to_table

LOGGER = logging.getLogger("amend")
MAX_VALUES = 1000
"""A text column with more distinct values is not a category, but rather a name or a comment."""
MIN_ROWS = 10
"""Up to this many rows, all texts may differ by chance."""
MAX_CLASSES = 20
"""An integer target with more distinct values is a number, not classes."""
MAX_SHOWN_VALUES = 5
OTHER = "other"
"""The placeholder value of a category without values: every later value is unseen."""
TARGETS = ("binary", "classes", "labels", "number", "count")
SEPARATOR, NO_LABELS = "|", "[]"
"""Between the labels in a text, and for no label."""


@dataclass(frozen=True)
class FrameSchema:
    """The schema inferred from a frame. ``str()`` gives a readable summary."""

    rows: int
    input: dict[str, Any]
    target: dict[str, Any]
    target_column: str
    left_out: list[str]
    notes: list[str] = field(default_factory=list)
    """Warnings: columns with one value or none, rows without a target."""

    def __str__(self) -> str:
        columns = [(repr(c["name"]), c["type"], show_values(c.get("values"))) for c in self.input["columns"]]
        name, kind = (max(len(row[i]) for row in columns) for i in (0, 1))
        lines = [f"{len(columns)} columns, inferred from {self.rows} rows:"]
        lines += [f"  {row[0]:{name}}  {row[1]:{kind}}  {row[2]}".rstrip() for row in columns]
        lines.append(f"target {self.target_column!r}: {self.target['kind']} {show_values(self.target.get('values'))}")
        if self.left_out:
            lines.append(f"excluded: {quote(self.left_out)}")
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
    """Infer the input and target of a model from a frame.

    Numbers, booleans, dates and timestamps become columns of that type; texts and pandas categoricals become
    categories. The target is ``binary`` if it is boolean or has only 0 and 1, ``classes`` if it is text or has few
    distinct integers, ``labels`` if it has lists, else ``number``; ``target_kind`` overrides this. The columns ``id``,
    ``subject`` and ``weight`` are excluded, and so are those with a reserved name (`dataframes.RESERVED`).

    Raises ValueError, with advice, for a column that cannot be used.
    """
    table = to_table(frame)
    for name in filter(None, (target, id, subject, weight)):
        if name not in table.column_names:
            raise ValueError(f"The frame has no column {name!r}. Its columns are {quote(table.column_names)}.")
    if target_kind not in (None, *TARGETS):
        raise ValueError(f"Unknown target_kind {target_kind!r}. It must be one of {', '.join(TARGETS)}.")
    excluded = {target, id, subject, weight, *RESERVED}
    features = [name for name in table.column_names if name not in excluded]
    if not features:
        raise ValueError("The frame has no feature columns.")
    notes: list[str] = []
    if weight is None and "weight" in table.column_names and target != "weight":
        notes.append("'weight' is used as the weight of each row; rename the column if it is a feature")
    columns = [read_column(name, table.column(name), notes) for name in features]
    described = read_target(target, table.column(target), target_kind, notes)
    left_out = [name for name in table.column_names if name in excluded and name != target]
    return FrameSchema(table.num_rows, {"kind": "table", "columns": columns}, described, target, left_out, notes)


def describe_frame(frame: Any, target: Any, **columns: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Input and target as inferred by `read_schema`. Its notes are logged as warnings."""
    if not isinstance(target, str):
        raise TypeError("With a frame, the target must be the name of one of its columns.")
    schema = read_schema(frame, target, **columns)
    for note in schema.notes:
        LOGGER.warning("%s", note)
    return schema.input, schema.target


def read_column(name: str, column: Any, notes: list[str]) -> dict[str, Any]:
    """Describe a column of the input."""
    kind = type_of(name, column.type)
    empty = column.null_count == len(column)
    described: dict[str, Any] = {"name": name, "type": kind}
    if kind == "category":
        described["values"] = read_values(name, column)
    if empty and described.get("values") == [OTHER]:
        notes.append(f"{name!r} has no values; all later values are treated as unseen")
    elif empty:
        notes.append(f"{name!r} has no values and is treated as a {kind} column; drop it if that is wrong")
    elif len(column.unique().drop_null()) == 1:
        notes.append(f"{name!r} has the same value in all rows")
    return described


def type_of(name: str, kind: Any) -> str:
    """The column type that corresponds to an Arrow type."""
    import pyarrow.types as types

    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind):
        return "number"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    if types.is_dictionary(kind) or is_text(kind):
        return "category"
    raise ValueError(
        f"Column {name!r} has the unsupported type {kind}. Convert it to numbers, booleans, dates or text, or drop it."
    )


def read_target(name: str, column: Any, wanted: str | None, notes: list[str]) -> dict[str, Any]:
    """Describe the target, with the given kind or the one that its values suggest."""
    import pyarrow.types as types

    if column.null_count == len(column):
        raise ValueError(f"The target {name!r} has no values.")
    if column.null_count:
        notes.append(f"the target {name!r} is missing in {column.null_count} rows, which cannot be added as examples")
    kind = column.type
    if wanted == "labels" or (wanted is None and (types.is_list(kind) or types.is_large_list(kind))):
        return {"kind": "labels", "values": read_labels(name, column)}
    known = types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)
    if not (known or is_text(kind) or types.is_dictionary(kind)):
        raise ValueError(f"The target {name!r} has the unsupported type {kind}. Use numbers, booleans or text.")
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
        raise ValueError(f"The target {name!r} has fractions, which cannot be classes. Use target_kind='number'.")
    return {"kind": "classes", "values": check_classes(name, [int(value) for value in values])}


def read_labels(name: str, column: Any) -> list[Any]:
    """All labels in a column of lists, or of texts such as ``sports|politics``, sorted."""
    import pyarrow.compute as pc

    if is_text(column.type):
        present = column.drop_null()
        column = pc.split_pattern(present.filter(pc.not_equal(present, NO_LABELS)), SEPARATOR)
    try:
        values = pc.list_flatten(column).drop_null().unique().to_pylist()
    except (NotImplementedError, TypeError, ValueError):
        raise ValueError(f"The target {name!r} has neither lists of labels nor text with {SEPARATOR!r}.") from None
    if not values:
        raise ValueError(f"The target {name!r} has no labels.")
    if not all(isinstance(value, int | str) and not isinstance(value, bool) for value in values):
        raise ValueError(f"The labels of {name!r} must be text or whole numbers.")
    return sorted(values)


def read_values(name: str, column: Any, target: bool = False) -> list[Any]:
    """The values of a category, or the classes of a target."""
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        return read_categories(name, column)
    return read_texts(name, column, target)


def read_categories(name: str, column: Any) -> list[int | str]:
    """All values of a categorical, in their order, whether they occur or not."""
    values: dict[Any, None] = {}
    for chunk in column.chunks:
        values |= dict.fromkeys(chunk.dictionary.to_pylist())
    plain: list[int | str] = []
    for value in values:
        if isinstance(value, bool):
            plain.append(str(value).lower())
        elif isinstance(value, float) and value.is_integer():
            plain.append(int(value))
        elif isinstance(value, int | str):
            plain.append(value)
        elif value is not None:
            raise ValueError(f"The categories of {name!r} must be text or whole numbers.")
    return plain or [OTHER]


def read_texts(name: str, column: Any, target: bool = False) -> list[str]:
    """The distinct texts of a column, sorted. An empty text is a missing value."""
    present = column.drop_null()
    values = sorted(value for value in present.unique().to_pylist() if value)
    if len(values) > MAX_VALUES or len(values) == len(present) > MIN_ROWS:
        many = f"Column {name!r} has {len(values)} different texts in {len(present)} rows"
        if target:
            raise ValueError(f"{many}, too many for classes. Choose another target.")
        advice = "Drop it, pass it as id= or subject=, or make it a categorical of its frequent values"
        raise ValueError(f"{many}, too many for a category. {advice} (all others are then treated as unseen).")
    return values or [OTHER]


def check_classes(name: str, values: list[Any]) -> list[Any]:
    if len(values) < 2:
        raise ValueError(f"The target {name!r} has only one value. A classifier needs at least two.")
    return values


def is_text(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))
