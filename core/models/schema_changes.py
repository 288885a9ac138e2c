"""Requests that change the input or target: the complete new one, and how older rows are converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field

from core.errors import Invalid
from core.kprior.model.spec import Column, Input, SpecPart
from core.models.field_types import Text, Value
from core.models.spec import (
    BinaryTargetSchema,
    BooleanColumnSchema,
    CategoryColumnSchema,
    ClassesTargetSchema,
    CountTargetSchema,
    DateColumnSchema,
    LabelsTargetSchema,
    NumberColumnSchema,
    NumberTargetSchema,
    TableInputSchema,
)

Was = Annotated[Text | None, Field(description="Previous name of a renamed column.")]
Merge = Annotated[
    dict[str, Value],
    Field(max_length=10_000, description="Maps each removed value (as text) to the value that replaces it."),
]


class ChangedNumberColumnSchema(NumberColumnSchema):
    was: Was = None
    default: float | None = Field(
        None, ge=-(2.0**63), le=2.0**63, description="Value of a new column in older rows; null: missing."
    )


class ChangedBooleanColumnSchema(BooleanColumnSchema):
    was: Was = None
    default: bool | None = Field(None, description="Value of a new column in older rows; null: missing.")


class ChangedDateColumnSchema(DateColumnSchema):
    was: Was = None


class ChangedCategoryColumnSchema(CategoryColumnSchema):
    was: Was = None
    default: Value | None = Field(None, description="Value of a new column in older rows; null: missing.")
    merge: Merge | None = None


ChangedColumnSchema = Annotated[
    ChangedNumberColumnSchema | ChangedBooleanColumnSchema | ChangedDateColumnSchema | ChangedCategoryColumnSchema,
    Field(discriminator="type"),
]


MAX_COLUMNS = 10_000
NewColumns = Annotated[
    list[ChangedColumnSchema],
    Field(min_length=1, max_length=MAX_COLUMNS, fail_fast=True),
    AfterValidator(TableInputSchema.named_apart),
]


class ChangedTableSchema(TableInputSchema):
    """The columns of the changed table. A renamed column gives its previous name as `was`."""

    kind: Literal["table"]
    columns: list[ChangedColumnSchema] = Field(min_length=1, max_length=MAX_COLUMNS, fail_fast=True)  # type: ignore[assignment]


class ChangedClassesSchema(ClassesTargetSchema):
    """The classes of the changed target, and the replacements of removed classes."""

    merge: Merge | None = None


ChangedTargetSchema = Annotated[
    BinaryTargetSchema | ChangedClassesSchema | LabelsTargetSchema | NumberTargetSchema | CountTargetSchema,
    Field(discriminator="kind"),
]


def plain_part(part: SpecPart) -> SpecPart:
    """A part of a spec after a change, without the conversion of older rows.

    >>> plain_part({"kind": "classes", "values": ["a", "b"], "merge": {"c": "b"}})
    {'kind': 'classes', 'values': ['a', 'b']}
    """
    changed = cast("dict[str, Any]", part)
    plain = {name: value for name, value in changed.items() if name != "merge"}
    if changed.get("kind") == "table":
        conversion = ("was", "default", "merge", "restores")
        plain["columns"] = [{n: v for n, v in column.items() if n not in conversion} for column in changed["columns"]]
    return cast(SpecPart, plain)


def change_columns(
    current: Input, changed: SpecPart | None, added: Sequence[Column], dropped: Sequence[str]
) -> SpecPart:
    """The complete new input of a change that adds and drops columns by name.

    Parameters
    ----------
    current
        The input as it is.
    changed
        The complete new input, if the change gives it: then it must lack the dropped columns, and only them.
    added, dropped
        New columns, and the names of dropped ones.

    Raises
    ------
    Invalid
        If a column to drop does not exist, a column to add exists, or the new input lacks a column without saying so.
    """
    if current["kind"] != "table":
        place = "input" if changed else "add_columns" if added else "drop_columns"
        raise Invalid.at((place,), "input_incompatible", "Only the columns of a table can change.")
    if "transform" in current or "transform" in (changed or {}):
        place = "input" if changed else "add_columns" if added else "drop_columns"
        message = "The steps of an imported pipeline need its columns. Import the refitted pipeline as a new model."
        raise Invalid.at((place,), "input_incompatible", message)
    names = [column["name"] for column in current["columns"]]
    for i, name in enumerate(dropped):
        if name not in names:
            message = f"The current input has no column {name!r}."
            raise Invalid.at(("drop_columns", i), "column_unknown", message)
    if changed is not None:
        lost = compare_columns(cast(SpecPart, current), changed)[1]
        if missing := [name for name in lost if name not in dropped]:
            listed = ", ".join(map(repr, missing))
            message = f"The new input lacks {listed}. Name the columns in `drop_columns` to drop them."
            raise Invalid(
                "columns_missing", message, [(("input", "columns"), f"{name!r} is missing.") for name in missing]
            )
        if kept := [i for i, name in enumerate(dropped) if name not in lost]:
            message = f"The new input contains {dropped[kept[0]]!r}, which cannot be dropped at the same time."
            raise Invalid.at(("drop_columns", kept[0]), "input_incompatible", message)
        return changed
    columns = [column for column in current["columns"] if column["name"] not in dropped]
    there = {column["name"] for column in columns}
    for i, column in enumerate(added):
        if column["name"] in there:
            message = f"The input already has a column {column['name']!r}."
            raise Invalid.at(("add_columns", i, "name"), "column_exists", message)
        if "was" in column:
            raise Invalid.at(("add_columns", i, "was"), "input_incompatible", "Use `input` to rename a column.")
    columns += added
    if not columns:
        raise Invalid.at(("drop_columns",), "input_incompatible", "At least one column must remain.")
    if len(columns) > MAX_COLUMNS:
        raise Invalid.at(("add_columns",), "input_incompatible", f"An input can have at most {MAX_COLUMNS} columns.")
    return cast(SpecPart, {"kind": "table", "columns": columns})


def compare_columns(before: SpecPart, after: SpecPart) -> tuple[list[str], list[str]]:
    """The columns that a changed input adds, and those that it drops.

    >>> age, years = {"name": "age", "type": "number"}, {"name": "years", "type": "number"}
    >>> compare_columns({"kind": "table", "columns": [age]}, {"kind": "table", "columns": [years]})
    (['years'], ['age'])
    >>> compare_columns({"kind": "table", "columns": [age]}, {"kind": "table", "columns": [{**years, "was": "age"}]})
    ([], [])
    """
    old = [column["name"] for column in cast("dict[str, Any]", before).get("columns", [])]
    new = {column.get("was") or column["name"]: column["name"] for column in cast("dict[str, Any]", after)["columns"]}
    return [name for was, name in new.items() if was not in old], [name for name in old if name not in new]
