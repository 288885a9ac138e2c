"""Pictures are drawn whatever the classes are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core.tables.versions import VersionKind
from core.tracking import charts


@pytest.mark.parametrize("name", [r"$\frac{$", "$x^$", r"$\nothing$", "a $ b", "cash in $ and $"])
def test_names_of_classes_are_no_formulas(name: str) -> None:
    version: Any = SimpleNamespace(number=1, kind=VersionKind.TRAINED)
    plain = charts.confusion(version, [[3, 1], [0, 2]], {"kind": "classes", "values": [name, "b"]})
    assert charts.png(plain).startswith(b"\x89PNG")
    assert charts.svg(plain).startswith("<svg")
