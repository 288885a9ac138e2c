"""Conversion of rows from one input schema to the next, and of targets: what a schema change does to existing rows.

Columns are matched by name: a column stays, is renamed (`was`), is added (`default` is its value in existing rows), is
dropped, or is restored after it was dropped (`restores`): rows that are older than the drop still contain it. Values of
a category and classes are matched by value: a value stays, is added, or is replaced by another (`merge`). Rows keep the
text of unseen values; a row whose text is added to the values gets the code of that value. The ledger converts rows as
it reads them; `adaptation/schema/` converts sums over rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from core.kprior.model.categories import UNSEEN, spellings_of
from core.kprior.model.spec import Column, Input, Spec, TableInput, Target, frozen_encoder, values_of

Location = tuple[str | int, ...]
Texts = Mapping[int, str]
"""Texts of the unseen values of a row, by the index of their columns."""


class Inconvertible(ValueError):
    """A schema change that cannot be applied to existing rows: where it is wrong, and why."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(message)
        self.location = location


@dataclass(frozen=True)
class Source:
    """Where a column of the new rows comes from."""

    index: int | None
    """Index of the column in the old rows; None for a new column."""
    constant: float = math.nan
    """Value of a new column, and of a restored one in rows that do not contain it."""
    codes: tuple[float, ...] | None = None
    """For a category, the new code of each old code."""
    dropped: int | None = None
    """For a restored column, the position of the change that dropped it: `index` refers to rows from before it."""
    added: Mapping[str, float] | None = None
    """For a category that gets new values, the code of each text that means one of them."""

    def of(self, x: NDArray[Any]) -> NDArray[Any] | float:
        """Values of the column, computed from old rows."""
        if self.index is None or self.dropped is not None:
            return self.constant
        return x[:, self.index] if self.codes is None else recode(self.codes, x[:, self.index])


@dataclass(frozen=True)
class Conversion:
    """The columns of the new rows.

    Examples
    --------
    >>> import numpy as np
    >>> from core.kprior.data.schema_conversion import input_conversion
    >>> old = {"kind": "table", "columns": [{"name": "age", "type": "number"}]}
    >>> new = {"kind": "table", "columns": [{"name": "visits", "type": "number", "default": 1.0}]}
    >>> new["columns"].append({"name": "years", "type": "number", "was": "age"})
    >>> input_conversion(old, new)(np.array([[30], [40]], np.float32)).tolist()
    [[1.0, 30.0], [1.0, 40.0]]
    """

    columns: tuple[Source, ...]

    def __call__(self, x: NDArray[Any], unseen: Sequence[Texts] | None = None) -> NDArray[np.float32]:
        """Rows (n, columns before) -> (n, columns after); `unseen` are the texts of each row's unseen values."""
        made = np.empty((len(x), len(self.columns)), np.float32)
        for j, source in enumerate(self.columns):
            made[:, j] = source.of(x)
        for i, texts in enumerate(unseen or ()):
            for j, code in self.recovered(texts).items() if texts else ():
                made[i, j] = code
        return made

    def recovered(self, texts: Texts) -> dict[int, float]:
        """The codes, by new column, of a row's unseen values that have been added to the values of their columns.

        >>> plan = Source(1, added={"trial": 2.0})
        >>> Conversion((plan,)).recovered({1: "trial", 3: "red"}), Conversion((plan,)).recovered({1: "gold"})
        ({0: 2.0}, {})
        """
        added = {j: (self.columns[j].added or {}).get(text) for j, text in self.moved(texts).items()}
        return {j: code for j, code in added.items() if code is not None}

    def unseen(self, texts: Texts) -> dict[int, str]:
        """The texts of a row's values that are still unseen, by new column."""
        return {j: text for j, text in self.moved(texts).items() if text not in (self.columns[j].added or {})}

    def moved(self, texts: Texts) -> dict[int, str]:
        """The texts of a row's unseen values, by new column."""
        return {self.places[i]: text for i, text in texts.items() if i in self.places}

    @cached_property
    def places(self) -> dict[int, int]:
        """The new index of each column that stays."""
        return {s.index: j for j, s in enumerate(self.columns) if s.index is not None and s.dropped is None}

    @property
    def adds_values(self) -> bool:
        """Whether it adds values to a category: unseen values of existing rows may be among them."""
        return any(source.added and source.dropped is None for source in self.columns)

    def then(self, later: Conversion, position: int = 0) -> Conversion:
        """This conversion, by the change at `position`, followed by a later one."""
        return Conversion(tuple(follow(self.columns, source, position) for source in later.columns))

    @property
    def is_identity(self) -> bool:
        """Whether every column is taken from the same place unchanged, if there are as many columns as before."""
        return all(source == Source(i) for i, source in enumerate(self.columns))

    @property
    def restores(self) -> bool:
        """Whether it restores columns that older rows contain, but the rows that it is applied to do not."""
        return any(source.dropped is not None for source in self.columns)


def follow(before: Sequence[Source], source: Source, position: int) -> Source:
    """The source of a column in the original rows, if the rows that it is taken from are converted themselves.

    Parameters
    ----------
    position
        Position of the change by which they are converted. Rows from before the change that dropped a column contain
        it.
    """
    if source.index is None:
        return source
    if source.dropped is not None:
        return replace(source, constant=math.nan, dropped=None) if source.dropped == position else source
    first = before[source.index]
    if source.codes is None:
        return first
    constant = float(recode(source.codes, np.array([first.constant]))[0])
    if first.index is None:
        return Source(None, constant)
    codes = source.codes if first.codes is None else tuple(recode(source.codes, np.array(first.codes)).tolist())
    earlier = first.added or {}
    moved = recode(source.codes, np.array(list(earlier.values()))).tolist()
    added = {**(source.added or {}), **dict(zip(earlier, moved, strict=True))}
    return Source(first.index, constant, codes, first.dropped, added or None)


def recode(codes: Sequence[float], values: NDArray[Any]) -> NDArray[np.float64]:
    """Replace old codes by new ones; missing and unseen values stay as they are, and soft labels have no code."""
    known = (values >= 0) & (values < len(codes))
    table = np.array([*codes, UNSEEN])
    found = table[np.where(known, values, len(codes)).astype(np.int64)]
    return np.where(values == np.floor(values), found, np.nan)


def input_conversion(old: Input, new: Input, earlier: Mapping[int, Input] | None = None) -> Conversion | None:
    """The conversion of rows for a change of the input; None if rows do not change.

    Parameters
    ----------
    earlier
        The inputs before earlier changes, by their positions. A restored column names one of them (`restores`).

    Raises
    ------
    Inconvertible
        If existing rows cannot be converted.
    """
    if new["kind"] != "table" or old["kind"] != "table":
        if new == old:
            return None
        raise Inconvertible(("kind",), "Only the columns of a table can change.")
    there = {column["name"]: i for i, column in enumerate(old["columns"])}
    sources, used = [], set[int]()
    for j, column in enumerate(new["columns"]):
        location: Location = ("columns", j)
        was = column.get("was", column["name"])
        if "was" in column and was not in there:
            raise Inconvertible((*location, "was"), f"The current input has no column {was!r}.")
        index = there.get(was)
        if index is None and "restores" in column:
            sources.append(restored_column((earlier or {})[column["restores"]], column, location))
            continue
        if index is None:
            sources.append(Source(None, default_of(column, location)))
            continue
        if index in used:
            raise Inconvertible((*location, "was"), f"Another column already replaces {was!r}.")
        if column.get("default") is not None:
            raise Inconvertible(
                (*location, "default"), "Only a new column can have a default; rows already have values of this one."
            )
        used.add(index)
        sources.append(kept_column(old["columns"][index], column, index, location))
    made = Conversion(tuple(sources))
    same = len(sources) == len(there) and made.is_identity
    return None if same else made


def kept_column(before: Column, after: Column, index: int, location: Location) -> Source:
    """The source of a column that stays, possibly renamed."""
    if before["type"] != after["type"]:
        message = f"The type was {before['type']} and cannot change. Drop the column and add one with another name."
        raise Inconvertible((*location, "type"), message)
    if before["type"] != "category" or after["type"] != "category":
        return Source(index)
    merge = after.get("merge", {})
    codes = recoding(before["values"], after["values"], merge, location)
    if gone := [v for v, code in zip(before["values"], codes, strict=True) if math.isnan(code)]:
        message = f"The value {gone[0]!r} is missing. Name its replacement in `merge`."
        raise Inconvertible((*location, "values"), message)
    unchanged = codes == [float(i) for i in range(len(before["values"]))] and len(codes) == len(after["values"])
    new = {float(i) for i, value in enumerate(after["values"]) if value not in before["values"]}
    added = {text: code for text, code in spellings_of(after["values"]).items() if code in new}
    return Source(index, codes=None if unchanged else tuple(codes), added=added or None)


def restored_column(before: Input, after: Column, location: Location) -> Source:
    """The source of a column that an earlier change dropped; `before` is the input before that change."""
    assert before["kind"] == "table"
    [(index, column)] = [(i, c) for i, c in enumerate(before["columns"]) if c["name"] == after["name"]]
    if column["type"] != after["type"]:
        message = (
            f"A dropped column of this name has the type {column['type']}. Use that type to restore it, or choose "
            "another name."
        )
        raise Inconvertible((*location, "type"), message)
    source = kept_column(column, after, index, location)
    new = cast(Column, {name: value for name, value in after.items() if name != "merge"})
    return Source(index, default_of(new, location), source.codes, after["restores"], source.added)


def default_of(column: Column, location: Location) -> float:
    """Value of a new column in existing rows."""
    if column.get("merge"):
        raise Inconvertible((*location, "merge"), "A new column has no values to merge.")
    value = column.get("default")
    if value is None:
        return math.nan
    if column["type"] != "category":
        return float(np.float32(cast(float, value)))
    if value not in column["values"]:
        raise Inconvertible((*location, "default"), "The default must be one of the column's values.")
    return float(column["values"].index(cast(int | str, value)))


def recoding(
    before: Sequence[int | str], after: Sequence[int | str], merge: dict[str, Any], location: Location
) -> list[float]:
    """The new code of each old value; NaN for values without one."""
    where = {value: float(code) for code, value in enumerate(after)}
    names = {str(value) for value in before}
    for old, new in merge.items():
        if old not in names or old in map(str, after):
            raise Inconvertible((*location, "merge", old), "Only a value that the change drops can be merged.")
        if new not in where:
            raise Inconvertible((*location, "merge", old), f"{new!r} is not one of the new values.")
    return [where.get(value, where.get(merge.get(str(value), ""), math.nan)) for value in before]


def target_conversion(old: Target, new: Target) -> tuple[float, ...] | None:
    """The new index of each old class or label, NaN for dropped ones; None if targets do not change.

    Raises
    ------
    Inconvertible
        If existing targets cannot be converted.
    """
    if old["kind"] == "number" and new["kind"] == "number" and old.get("transform") != new.get("transform"):
        raise Inconvertible(("transform",), "The transformation of a target cannot change. Create a new model.")
    if old["kind"] == "labels" and new["kind"] == "labels":
        places = tuple(recoding(old["values"], new["values"], {}, ()))
        same = places == tuple(map(float, range(len(places)))) and len(places) == len(new["values"])
        return None if same else places
    if old["kind"] == new["kind"] and new["kind"] != "classes":
        return None
    if new["kind"] != "classes" or (old["kind"] != "binary" and old["kind"] != "classes"):
        message = (
            f"{old['kind']} cannot become {new['kind']}. Only classes and labels can change, and binary can become "
            "classes."
        )
        raise Inconvertible(("kind",), message)
    before = values_of(old)
    codes = recoding(before, new["values"], new.get("merge", {}), ())
    if old["kind"] == "binary" and any(math.isnan(code) for code in codes):
        raise Inconvertible(("values",), "The values must include 0 and 1, or `merge` must name their replacements.")
    same = codes == [float(i) for i in range(len(before))] and len(codes) == len(new["values"])
    return None if same and old["kind"] == "classes" else tuple(codes)


def target_then(first: tuple[float, ...] | None, later: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Combine two successive changes of the target."""
    if first is None or later is None:
        return later if first is None else first
    return tuple(math.nan if math.isnan(code) else later[int(code)] for code in first)


def reverted_input(before: TableInput, after: TableInput, restorable: Collection[str] = ()) -> TableInput:
    """The change that reverts another one: it drops added columns, and restores dropped ones and former names.

    Parameters
    ----------
    before
        The input before the change.
    after
        The change, with `was`, `default` and `merge`.
    restorable
        Names of dropped columns whose values are still stored.

    Raises
    ------
    Inconvertible
        If the change dropped something that cannot be restored.
    """
    now = {column.get("was", column["name"]): column for column in after["columns"]}
    columns: list[Column] = []
    for column in before["columns"]:
        name = column["name"]
        if name not in now:
            if name not in restorable:
                raise Inconvertible((), f"The change dropped the column {name!r}, whose values cannot be restored.")
            columns.append(column)
            continue
        if category_values(column) != category_values(now[name]):
            raise Inconvertible((), f"The change altered the values of the column {name!r}.")
        renamed = {"was": now[name]["name"]} if now[name]["name"] != name else {}
        columns.append(cast(Column, {**column, **renamed}))
    return {"kind": "table", "columns": columns}


def category_values(column: Column) -> set[int | str]:
    """The values of a category; empty for other columns."""
    return set(column["values"]) if column["type"] == "category" else set()


def same_schema(one: Spec, other: Spec) -> bool:
    """Whether rows of both specs have the same schema, as the engine reads them."""
    same_rows = one["input"] == other["input"] and frozen_encoder(one) == frozen_encoder(other)
    return same_rows and one["target"] == other["target"]
