"""Charts of versions are valid SVG whatever the classes are called."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from core.charts import standalone
from core.tables.versions import Version, VersionKind
from core.tracking import charts


@pytest.mark.parametrize("name", [r"$\frac{$", "a $ b", "<b>bold</b>", "'&\"", "\u202ename", "\x1b[1m"])
def test_names_of_classes_are_shown_as_they_are(name: str) -> None:
    evaluation: Any = {"confusion": [[3, 1], [0, 2]]}
    version = Version(number=1, kind=VersionKind.TRAINED, evaluation=evaluation)
    drawn = charts.of_predictions(version, {"kind": "classes", "values": [name, "b"]})["confusion.svg"]
    texts = [element.text for element in ElementTree.fromstring(standalone(drawn)).iter() if element.text]
    assert texts.count(name.replace("\x1b", "\ufffd")) == 2  # of the row and of the column
    assert texts.count("3") == 2  # the count and its tooltip
