"""Predictions of the champion or of a given version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amend import dataframes, example_batches, responses
from amend.client_methods import operation
from amend.operations.versions import VersionName
from amend.prediction_tables import PredictionTable
from amend.requests import Caller, Flow, list_of, make_call, path, without_none


class Predictions(Caller):
    @operation
    def predict(
        self,
        model: str,
        inputs: Any,
        *,
        version: VersionName | None = None,
        uncertainty: bool = False,
        explain: bool = False,
        ids: Iterable[str] | None = None,
        subjects: Iterable[str | None] | None = None,
        record: bool = False,
    ) -> Flow[responses.Predictions]:
        """Predict with the champion, or with the given version.

        ``inputs`` is a list, a NumPy array, a sparse matrix, or a frame of pandas, polars or pyarrow, of any length.
        The columns of a table are matched by name, so the frame that was given to ``add_examples`` will do; ValueError
        is raised if a column is missing. The columns of a vector are used in their order; ``id``, ``subject``, ``y``,
        ``weight``, ``split``, ``time`` and ``source`` are ignored. With ``uncertainty``, each prediction has ``std``
        and ``interval``; with ``explain``, it has ``contributions`` of the columns (linear models and trees).

        The result has ``to_numpy()``, ``to_pandas()`` and ``to_arrow()``. For many rows, ``predict_table`` is faster.

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
            parts = example_batches.split_rows(dataframes.check_rows(inputs))
        outputs: list[responses.Prediction] = []
        response = None
        for part in parts:
            options = {"version": version, "uncertainty": uncertainty or None, "explain": explain or None}
            body = {"inputs": part, **without_none(options)}
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

    @operation
    def predict_table(
        self, model: str, inputs: Any, *, version: VersionName | None = None, uncertainty: bool = False
    ) -> Flow[PredictionTable]:
        """Predict for any number of rows, which are sent and returned as Arrow tables.

        ``inputs`` is a frame of pandas, polars or pyarrow, as for ``predict``, or an array with one row per input. The
        result has ``to_numpy()``, ``to_pandas()`` and ``to_arrow()``; its column ``id`` repeats that of the frame.
        """
        pa = example_batches.require("pyarrow")
        number = None if version == "champion" else version
        described, number = yield from self.find_input(model, number)
        table = dataframes.to_input_table(inputs, model, described)
        pieces: list[Any] = []
        for batch in example_batches.batch_tables(table.to_batches()):
            place = path("models", model, "predictions", "bulk")
            params = without_none({"version": number, "uncertainty": uncertainty or None})
            kinds = {"content_type": example_batches.ARROW, "accept": example_batches.ARROW}
            response = yield from self.send(make_call("POST", place, None, params, batch.content, **kinds))
            pieces.append(pa.ipc.open_stream(response.content).read_all())
        if not pieces:
            raise ValueError("There are no rows to predict for.")
        found = pa.concat_tables(pieces)
        about = found.schema.metadata or {}
        known = about.get(b"version")
        return PredictionTable(found, number if known is None else int(known))

    def find_input(self, model: str, version: int | None) -> Flow[tuple[Mapping[str, Any], int | None]]:
        """The input spec of the version that will predict, which may precede a change of columns, and its number."""
        if version is None:
            found = yield from self.ask(responses.Model, "GET", path("models", model))
            if found.champion is None:
                return found.input, None
            version = found.champion
        spec = (yield from self.ask(responses.Version, "GET", path("models", model, "versions", version))).spec
        return spec["input"], version
