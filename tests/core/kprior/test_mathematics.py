"""docs/explanation/mathematics.md says where each equation of the paper is in the code: the names must be there."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "explanation" / "mathematics.md").read_text()
SECTION = PAGE.split("## Where the paper's equations are")[1].split("\n## ")[0]
EQUATIONS = 27


def test_what_the_table_of_equations_names_is_there() -> None:
    names = re.findall(r"`([a-z_]+(?:\.[A-Za-z_0-9]+)+)`", SECTION)
    assert names
    for name in names:
        pkgutil.resolve_name(name if name.startswith("bench.") else f"core.kprior.{name}")


def test_the_table_has_every_equation() -> None:
    cells = re.findall(r"^\| ([0-9, ]+) \|", SECTION, re.MULTILINE)
    assert sorted(int(number) for cell in cells for number in cell.split(",")) == list(range(1, EQUATIONS + 1))
