"""Predictions of the champion or of a given version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amend import dataframes, example_batches, responses
from amend.client_methods import operation
from amend.operations.versions import VersionName
from amend.requests import Caller, Flow, list_of, path, without_none


class Predictions(Caller):
    @operation
    def predict(
        self,
        model: str,
        inputs: Any,
        *,
        version: VersionName | None = None,
        uncertainty: bool = False,
        ids: Iterable[str] | None = None,
        subjects: Iterable[str | None] | None = None,
        record: bool = False,
    ) -> Flow[responses.Predictions]:
        """Predict with the champion, or with the given version.

        ``inputs`` is a list, a NumPy array, a sparse matrix, or a frame of pandas, polars or pyarrow, of any length.
        The columns of a table are matched by name; ValueError is raised if a column is missing or unknown. The columns
        of a vector are used in their order. ``id``, ``subject``, ``y``, ``weight`` and ``split`` are ignored. With
        ``uncertainty``, each prediction has ``std`` and ``interval``.

        With ``record``, the inputs are stored as examples without a label, together with the predictions. ``ids`` has
        the id of each input, by which ``add_labels`` adds its label later; ``subjects`` has the person that each input
        is about.
        """
        if record != (ids is not None):
            raise ValueError("Give both `record=True` and `ids`, or neither.")
        names: dict[str, list[Any]] = {"ids": list_of(ids or ()), "subjects": list(subjects or ())}
        sent = 0
        place = path("models", model, "predictions")
        version = None if version == "champion" else version
        if dataframes.is_frame(inputs):
            described, version = yield from self.find_input(model, version)
            parts = dataframes.read_inputs(inputs, model, described)
        else:
            parts = example_batches.split_rows(inputs)
        outputs: list[responses.Prediction] = []
        response = None
        for part in parts:
            body = {"inputs": part, **without_none({"version": version, "uncertainty": uncertainty or None})}
            if record:
                given = {name: values[sent : sent + len(part)] for name, values in names.items() if values}
                body |= {"record": True, **given}
            sent += len(part)
            response = yield from self.ask(responses.Predictions, "POST", place, body)
            outputs += response.outputs
            version = response.version  # the same for all parts, even if the champion changes
        if response is None:
            raise ValueError("There are no rows to predict for.")
        return responses.Predictions(version=response.version, outputs=outputs)

    def find_input(self, model: str, version: int | None) -> Flow[tuple[Mapping[str, Any], int | None]]:
        """The input spec of the version that will predict, which may precede a change of columns, and its number."""
        if version is None:
            found = yield from self.ask(responses.Model, "GET", path("models", model))
            if found.champion is None:
                return found.input, None
            version = found.champion
        spec = (yield from self.ask(responses.Version, "GET", path("models", model, "versions", version))).spec
        return spec["input"], version
