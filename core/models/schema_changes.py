"""What callers may say of another input or target: the whole of it, and what it makes of rows from before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from core.models.fields import Text, Value
from core.models.spec import (
    BinaryTargetSchema,
    BooleanColumnSchema,
    CategoryColumnSchema,
    ClassesTargetSchema,
    CountTargetSchema,
    DateColumnSchema,
    NumberColumnSchema,
    NumberTargetSchema,
    TableInputSchema,
)

if TYPE_CHECKING:  # the engine brings torch, which checking does not need
    from core.kprior.model.spec import SpecPart

Was = Annotated[Text | None, Field(description="Its name before, where it is renamed.")]
Merge = Annotated[
    dict[str, Value],
    Field(max_length=10_000, description="For each value that is gone, by its text: the one that stands for it."),
]


class ChangedNumberColumnSchema(NumberColumnSchema):
    was: Was = None
    default: float | None = Field(
        None, ge=-(2.0**63), le=2.0**63, description="What rows from before have in a new column; null: it is missing."
    )


class ChangedBooleanColumnSchema(BooleanColumnSchema):
    was: Was = None
    default: bool | None = Field(None, description="What rows from before have in a new column; null: it is missing.")


class ChangedDateColumnSchema(DateColumnSchema):
    was: Was = None


class ChangedCategoryColumnSchema(CategoryColumnSchema):
    was: Was = None
    default: Value | None = Field(None, description="What rows from before have in a new column; null: it is missing.")
    merge: Merge | None = None


ChangedColumnSchema = Annotated[
    ChangedNumberColumnSchema | ChangedBooleanColumnSchema | ChangedDateColumnSchema | ChangedCategoryColumnSchema,
    Field(discriminator="type"),
]


class ChangedTableSchema(TableInputSchema):
    """Columns, with what became of those before: the same name, a new one (`was`), or none any more."""

    kind: Literal["table"]
    columns: list[ChangedColumnSchema] = Field(min_length=1, max_length=10_000, fail_fast=True)  # type: ignore[assignment]


class ChangedClassesSchema(ClassesTargetSchema):
    """Classes, with what became of those before."""

    merge: Merge | None = None


ChangedTargetSchema = Annotated[
    BinaryTargetSchema | ChangedClassesSchema | NumberTargetSchema | CountTargetSchema, Field(discriminator="kind")
]


def plain_part(part: SpecPart) -> SpecPart:
    """A part of a spec as it stands after a change, without what the change said of the rows before.

    >>> plain_part({"kind": "classes", "values": ["a", "b"], "merge": {"c": "b"}})
    {'kind': 'classes', 'values': ['a', 'b']}
    """
    found = cast("dict[str, Any]", part)
    made = {name: value for name, value in found.items() if name != "merge"}
    if found.get("kind") == "table":
        hints = ("was", "default", "merge")
        made["columns"] = [{n: v for n, v in column.items() if n not in hints} for column in found["columns"]]
    return cast("SpecPart", made)


def compare_columns(before: SpecPart, after: SpecPart) -> tuple[list[str], list[str]]:
    """The columns that come with a changed input, and those that go.

    >>> age, years = {"name": "age", "type": "number"}, {"name": "years", "type": "number"}
    >>> compare_columns({"kind": "table", "columns": [age]}, {"kind": "table", "columns": [years]})
    (['years'], ['age'])
    >>> compare_columns({"kind": "table", "columns": [age]}, {"kind": "table", "columns": [{**years, "was": "age"}]})
    ([], [])
    """
    old = [column["name"] for column in cast("dict[str, Any]", before).get("columns", [])]
    new = {column.get("was") or column["name"]: column["name"] for column in cast("dict[str, Any]", after)["columns"]}
    return [name for was, name in new.items() if was not in old], [name for name in old if name not in new]
