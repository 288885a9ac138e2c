"""Tables of results, and whether they meet their targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
"""The figures of one line of a table, by name; columns that are not named are for the JSON only."""


@dataclass(frozen=True)
class Target:
    """A result and its target."""

    name: str
    value: float | None
    """None if it was not measured in this run."""
    limit: float
    at_least: bool = False
    """Whether more is better."""

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None or math.isnan(self.value):
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        value = "not measured" if self.met is None else f"{self.value:.4g}"
        return f"{self.name}: {value} ({sign} {self.limit:g})"


@dataclass
class Report:
    """One table, with its targets."""

    name: str
    title: str
    columns: Mapping[str, str]
    """From a figure's name to how it is printed: `heading|format`."""
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self) -> Table:
        """For the terminal."""
        out = Table(title=self.title, title_justify="left")
        forms = {key: text.rpartition("|")[::2] for key, text in self.columns.items()}
        for heading, _ in forms.values():
            out.add_column(heading, justify="left" if len(out.columns) == 0 else "right")
        for row in self.rows:
            out.add_row(*(cell(row.get(key), form) for key, (_, form) in forms.items()))
        return out

    def verdict(self) -> list[str]:
        """One line for each target: met, missed or not measured."""
        lines = []
        for words, wanted in (("met", True), ("NOT met", False), ("not measured", None)):
            found = [str(target) for target in self.targets if target.met is wanted]
            if found:
                lines.append(f"{words}: {'; '.join(found)}")
        return lines

    def show(self, console: Console) -> None:
        """Print table, notes and verdict."""
        console.print(self.table())
        for line in [*self.notes, *self.verdict()]:
            console.print(line, markup=False, highlight=False)
        console.print()

    def figures(self) -> dict[str, Any]:
        """Everything, as JSON."""
        targets = [{**asdict(target), "met": target.met} for target in self.targets]
        return {"name": self.name, "title": self.title, "rows": self.rows, "targets": targets, "notes": self.notes}


def cell(value: Any, form: str) -> str:
    """A result as text; empty for None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, form)


def largest(rows: Sequence[Row], key: str) -> float | None:
    """The largest of a figure; None if no row has it."""
    return max((float(row[key]) for row in rows if row.get(key) is not None), default=None)


def smallest(rows: Sequence[Row], key: str) -> float | None:
    """The smallest of a figure; None if no row has it."""
    return min((float(row[key]) for row in rows if row.get(key) is not None), default=None)
