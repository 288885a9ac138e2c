"""Compares what two services store and return, except for a declared list of places."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from amend.prove.exceptions import EXCEPTIONS, Exempt
from amend.prove.readout import Readout

MISSING = "(nothing)"


@dataclass(frozen=True)
class Difference:
    """A place at which the twins differ."""

    place: str
    first: Any
    second: Any


@dataclass
class Comparison:
    """What was compared, what was not, and the differences."""

    compared: Counter[str] = field(default_factory=Counter)
    """Number of values by kind of place: REST responses, tables, files."""
    exempt: dict[Exempt, Counter[str]] = field(default_factory=dict)
    """For each declared exception, how many values it covered and how many of these differed."""
    differences: list[Difference] = field(default_factory=list)


def compare(first: Readout, second: Readout, exceptions: tuple[Exempt, ...] = EXCEPTIONS) -> Comparison:
    """Compare two readouts, value by value. A place that only one of them has is a difference."""
    found = Comparison(exempt={exempt: Counter() for exempt in exceptions})
    patterns = [(exempt, re.compile(exempt.pattern)) for exempt in exceptions]
    for place in sorted({*first, *second}):
        values = first.get(place, MISSING), second.get(place, MISSING)
        differs = values[0] != values[1]
        if exempt := next((exempt for exempt, pattern in patterns if pattern.search(place)), None):
            found.exempt[exempt].update(values=1, differed=int(differs))
            continue
        found.compared[kind_of(place)] += 1
        if differs:
            found.differences.append(Difference(place, *values))
    return found


def kind_of(place: str) -> str:
    """The part of a place that the report counts by.

    >>> kind_of("database/versions/1,2/method"), kind_of("files/artifacts/models/1/a/bytes")
    ('database/versions', 'files/artifacts')
    """
    return place.split("/")[0] if place.startswith(("rest/", "history/")) else "/".join(place.split("/")[:2])
