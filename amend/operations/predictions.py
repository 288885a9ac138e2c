"""Predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amend import batches, frames, responses
from amend.operations.versions import VersionName
from amend.sansio import Caller, Flow, operation, path, without_none


class Predictions(Caller):
    """By the champion, or by the version that is named."""

    @operation
    def predict(
        self, model: str, inputs: Any, *, version: VersionName | None = None, uncertainty: bool = False
    ) -> Flow[responses.Predictions]:
        """Predict with the champion, or with the version that is named.

        ``version`` is a number; ``"champion"`` is what there is without it.

        Inputs are a list, a NumPy array, a sparse matrix, or a frame of pandas, polars or pyarrow, of any length. A
        table's columns are found by their names: ValueError if one is missing, or unknown. Of a vector they are taken
        in their order. ``id``, ``subject``, ``y``, ``weight`` and ``split`` are passed over. With ``uncertainty`` each
        answer says how sure it is: ``std`` and ``interval``.
        """
        place = path("models", model, "predictions")
        version = None if version == "champion" else version
        if frames.is_frame(inputs):
            described, version = yield from self.find_input(model, version)
            pieces = frames.read_inputs(inputs, model, described)
        else:
            pieces = batches.split_rows(inputs)
        found: list[responses.Prediction] = []
        answer = None
        for some in pieces:
            body = {"inputs": some, **without_none({"version": version, "uncertainty": uncertainty or None})}
            answer = yield from self.ask(responses.Predictions, "POST", place, body)
            found += answer.outputs
            version = answer.version  # all by the same one, whatever becomes champion meanwhile
        if answer is None:
            raise ValueError("there are no rows to predict for")
        return responses.Predictions(answer.version, found)

    def find_input(self, model: str, version: int | None) -> Flow[tuple[Mapping[str, Any], int | None]]:
        """What the version that predicts reads, which may be from before a change of columns; and its number."""
        if version is None:
            found = yield from self.ask(responses.Model, "GET", path("models", model))
            if found.champion is None:
                return found.input, None
            version = found.champion
        spec = (yield from self.ask(responses.Version, "GET", path("models", model, "versions", version))).spec
        return spec["input"], version
