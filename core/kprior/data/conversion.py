"""From the rows of one input schema to those of the next, and the same for targets: what a change does to old rows.

What became of a column is found by its name: it stays, is renamed (`was`), comes (`default` is what rows from before
have) or goes. What became of a category's value, or of a class, is found by the value: it stays, comes, or another
stands for it (`merge`). The ledger converts rows as it reads them, `adaptation/schema/` the sums over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from core.kprior.model.categories import UNSEEN
from core.kprior.model.spec import Column, Input, Spec, TableInput, Target, values_of

Location = tuple[str | int, ...]


class Inconvertible(ValueError):
    """A change that old rows cannot follow: where it is wrong, and why."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(message)
        self.location = location


@dataclass(frozen=True)
class Source:
    """Where a column of the new rows comes from."""

    index: int | None
    """The column of the old rows; None: it is new."""
    constant: float = math.nan
    """What a new column has."""
    codes: tuple[float, ...] | None = None
    """The new code of each old one, where it is a category."""

    def of(self, x: NDArray[Any]) -> NDArray[Any] | float:
        """Its values in some old rows."""
        if self.index is None:
            return self.constant
        return x[:, self.index] if self.codes is None else recode(self.codes, x[:, self.index])


@dataclass(frozen=True)
class Conversion:
    """The columns of the new rows.

    Examples
    --------
    >>> import numpy as np
    >>> from core.kprior.data.conversion import input_conversion
    >>> old = {"kind": "table", "columns": [{"name": "age", "type": "number"}]}
    >>> new = {"kind": "table", "columns": [{"name": "visits", "type": "number", "default": 1.0}]}
    >>> new["columns"].append({"name": "years", "type": "number", "was": "age"})
    >>> input_conversion(old, new)(np.array([[30], [40]], np.float32)).tolist()
    [[1.0, 30.0], [1.0, 40.0]]
    """

    columns: tuple[Source, ...]

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Rows (n, columns before) -> (n, columns after)."""
        made = np.empty((len(x), len(self.columns)), np.float32)
        for j, source in enumerate(self.columns):
            made[:, j] = source.of(x)
        return made

    def then(self, later: Conversion) -> Conversion:
        """This one, and another after it."""
        return Conversion(tuple(follow(self.columns, source) for source in later.columns))


def follow(before: Sequence[Source], source: Source) -> Source:
    """Where a column comes from, if the rows it is taken from come from others."""
    if source.index is None:
        return source
    first = before[source.index]
    if source.codes is None:
        return first
    if first.index is None:
        return Source(None, float(recode(source.codes, np.array([first.constant]))[0]))
    codes = source.codes if first.codes is None else tuple(recode(source.codes, np.array(first.codes)).tolist())
    return Source(first.index, codes=codes)


def recode(codes: Sequence[float], values: NDArray[Any]) -> NDArray[np.float64]:
    """New codes for old ones: what is missing stays missing, and what is unseen unseen."""
    known = (values >= 0) & (values < len(codes))
    table = np.array([*codes, UNSEEN])
    found = table[np.where(known, values, len(codes)).astype(np.int64)]
    return np.where(np.isnan(values), np.nan, found)


def input_conversion(old: Input, new: Input) -> Conversion | None:
    """What a change of the input does to rows; None where nothing has to be done.

    Raises
    ------
    Inconvertible
        If old rows cannot be read as new ones.
    """
    if new["kind"] != "table" or old["kind"] != "table":
        if new == old:
            return None
        raise Inconvertible(("kind",), "only the columns of a table can change")
    there = {column["name"]: i for i, column in enumerate(old["columns"])}
    sources, used = [], set[int]()
    for j, column in enumerate(new["columns"]):
        location: Location = ("columns", j)
        was = column.get("was", column["name"])
        if "was" in column and was not in there:
            raise Inconvertible((*location, "was"), f"there was no column {was!r}")
        index = there.get(was)
        if index is None:
            sources.append(Source(None, default_of(column, location)))
            continue
        if index in used:
            raise Inconvertible((*location, "was"), f"another column is {was!r} already")
        if column.get("default") is not None:
            raise Inconvertible((*location, "default"), "the column is not new: rows have values of their own")
        used.add(index)
        sources.append(kept_column(old["columns"][index], column, index, location))
    made = Conversion(tuple(sources))
    same = len(sources) == len(there) and all(s == Source(i) for i, s in enumerate(sources))
    return None if same else made


def kept_column(before: Column, after: Column, index: int, location: Location) -> Source:
    """A column that stays, under whatever name."""
    if before["type"] != after["type"]:
        message = f"was a {before['type']}; drop the column, and add one of another name"
        raise Inconvertible((*location, "type"), message)
    if before["type"] != "category" or after["type"] != "category":
        return Source(index)
    merge = after.get("merge", {})
    codes = recoding(before["values"], after["values"], merge, location)
    if gone := [v for v, code in zip(before["values"], codes, strict=True) if math.isnan(code)]:
        message = f"the value {gone[0]!r} is gone: say in `merge` which one stands for it"
        raise Inconvertible((*location, "values"), message)
    unchanged = codes == [float(i) for i in range(len(before["values"]))] and len(codes) == len(after["values"])
    return Source(index, codes=None if unchanged else tuple(codes))


def default_of(column: Column, location: Location) -> float:
    """What rows from before have in a new column."""
    if column.get("merge"):
        raise Inconvertible((*location, "merge"), "the column is new: it has no values to merge")
    value = column.get("default")
    if value is None:
        return math.nan
    if column["type"] != "category":
        return float(np.float32(cast(float, value)))
    if value not in column["values"]:
        raise Inconvertible((*location, "default"), "must be one of the column's values")
    return float(column["values"].index(cast(int | str, value)))


def recoding(
    before: Sequence[int | str], after: Sequence[int | str], merge: dict[str, Any], location: Location
) -> list[float]:
    """The new code of each old value; NaN for one that is gone."""
    where = {value: float(code) for code, value in enumerate(after)}
    names = {str(value) for value in before}
    for old, new in merge.items():
        if old not in names or old in map(str, after):
            raise Inconvertible((*location, "merge", old), "must be a value that there was and is not any more")
        if new not in where:
            raise Inconvertible((*location, "merge", old), f"{new!r} is none of the values")
    return [where.get(value, where.get(merge.get(str(value), ""), math.nan)) for value in before]


def target_conversion(old: Target, new: Target) -> tuple[float, ...] | None:
    """The new class of each old one, NaN for one that is gone; None where nothing has to be done.

    Raises
    ------
    Inconvertible
        If old targets cannot be read as new ones.
    """
    if old["kind"] == new["kind"] and new["kind"] != "classes":
        return None
    if new["kind"] != "classes" or old["kind"] not in ("binary", "classes"):
        message = f"{old['kind']} cannot become {new['kind']}: only classes can change, and binary can become classes"
        raise Inconvertible(("kind",), message)
    before = values_of(old)
    codes = recoding(before, new["values"], new.get("merge", {}), ())
    if old["kind"] == "binary" and any(math.isnan(code) for code in codes):
        raise Inconvertible(("values",), "0 and 1 must be among the values, or `merge` must say what they are called")
    same = codes == [float(i) for i in range(len(before))] and len(codes) == len(new["values"])
    return None if same and old["kind"] == "classes" else tuple(codes)


def target_then(first: tuple[float, ...] | None, later: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """One change of the target after another."""
    if first is None or later is None:
        return later if first is None else first
    return tuple(math.nan if math.isnan(code) else later[int(code)] for code in first)


def reverted_input(before: TableInput, after: TableInput) -> TableInput:
    """The change that takes one back: what came goes, and what was renamed is called as before.

    Parameters
    ----------
    before
        The input before the change.
    after
        The change, with all that it said.

    Raises
    ------
    Inconvertible
        If something is gone that cannot come back.
    """
    now = {column.get("was", column["name"]): column for column in after["columns"]}
    columns: list[Column] = []
    for column in before["columns"]:
        name = column["name"]
        if name not in now:
            raise Inconvertible((), f"the column {name!r} was dropped with it, and nothing can fill it again")
        if category_values(column) != category_values(now[name]):
            raise Inconvertible((), f"values of the column {name!r} changed with it")
        renamed = {"was": now[name]["name"]} if now[name]["name"] != name else {}
        columns.append(cast(Column, {**column, **renamed}))
    return {"kind": "table", "columns": columns}


def category_values(column: Column) -> set[int | str]:
    """The values of a category; none of other columns."""
    return set(column["values"]) if column["type"] == "category" else set()


def same_schema(one: Spec, other: Spec) -> bool:
    """Whether rows of both look the same."""
    return one["input"] == other["input"] and one["target"] == other["target"]
