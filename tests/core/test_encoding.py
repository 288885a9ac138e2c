"""Examples that an encoder cannot encode, and an encoder that does not work for a while."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from core.database import Database
from core.encoders.example_encoding import UnencodedRows, encode_examples
from core.errors import Unavailable
from core.settings import Settings
from core.tables.ledger import Encoding
from migrations import runner
from tests.core.tracking.tracked_model import TrackedModel


def test_an_encoder_that_fails_for_all_examples_is_tried_again(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    database = Database(settings)
    runner.upgrade(database)
    encoder = {"kind": "onnx", "digest": f"sha256:{'0' * 64}", "features": 2}
    tracked = TrackedModel(database, settings).create(architecture={"kind": "linear", "encoder": encoder})

    def encode(function: Any) -> list[bool]:
        """Encode what is not encoded; returns for each example whether that succeeded."""
        model = tracked.model
        rows = UnencodedRows(model.id, model.spec, range(model.head), model.head)
        encode_examples(database, rows, function, lambda done, text: None)
        return stored()

    def stored() -> list[bool]:
        with database.read() as session:
            return [data != b"" for data in session.scalars(select(Encoding.data).order_by(Encoding.position))]

    def fail(x: Any) -> Any:
        return np.full((len(x), 2), np.nan, np.float32)

    def reciprocal(x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return (1 / np.asarray(x)).astype(np.float32)

    tracked.add([[1, 2], [0, 1], [3, 4]], [0, 1, 0])
    with pytest.raises(Unavailable) as error:
        encode(fail)
    assert error.value.code == "encoder_failed"
    assert stored() == []
    assert encode(reciprocal) == [True, False, True]
    tracked.add([[5, 6]], [1])
    with pytest.raises(Unavailable):
        encode(fail)
    # examples that cannot be encoded do not stop the others, even if they are all that is new
    tracked.add([[0, 6]], [1])
    assert encode(reciprocal) == [True, False, True, True, False]
    tracked.add([[0, 7], [7, 0]], [1, 0])
    assert encode(reciprocal) == [True, False, True, True, False, False, False]
