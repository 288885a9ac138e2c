"""What the client returns: short texts, tables for other libraries, a progress bar, and clear errors."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from amend import Client, FrameInvalid, progress_bars, responses, waiting
from amend.example_batches import split
from amend.prediction_tables import PredictionTable
from amend.progress_bars import ProgressBar
from tests.amend.conftest import StandIn

JOB: dict[str, Any] = {
    "id": "j1",
    "model": "churn",
    "kind": "adapt",
    "state": "running",
    "progress": 0.4,
    "message": "Reading <b>the examples</b>" + "!" * 100,
    "attempts": 1,
    "from_position": 0,
    "to_position": 10,
    "created_at": "2026-03-01T12:00:00Z",
}
BINARY = {"version": 3, "outputs": [{"mean": 0.25, "class": 0}, {"mean": 0.75, "class": 1}]}
CLASSES = {
    "version": 3,
    "outputs": [
        {"class": "dog", "probabilities": {"cat": 0.4, "dog": 0.6}},
        {"class": "cat", "probabilities": {"cat": 0.9, "dog": 0.1}},
    ],
}


def client_of(service: StandIn) -> Client:
    return Client(service.url, "amend_1_secret", pauses=())


def test_responses_have_a_short_text_a_table_for_notebooks_and_a_dictionary(stand_in: StandIn) -> None:
    stand_in.answer(JOB)
    job = client_of(stand_in).job("j1")
    assert repr(job).startswith("Job(id='j1', model='churn', kind='adapt', state='running', progress=0.4")
    assert len(repr(job)) < 300
    assert job.to_dict().items() >= {"id": "j1", "progress": 0.4, "created_at": "2026-03-01T12:00:00Z"}.items()
    page = job._repr_html_()
    assert "<th>progress</th><td>0.4</td>" in page
    assert "<b>" not in page  # texts are escaped


def test_lists_become_frames(stand_in: StandIn) -> None:
    stand_in.answer({"items": [JOB, {**JOB, "id": "j2", "error": {"code": "bad", "detail": "no"}}], "next": None})
    client = client_of(stand_in)
    found = client.jobs().to_pandas()
    assert found.id.tolist() == ["j1", "j2"]
    assert found["error.code"].tolist()[1] == "bad"
    assert [job.id for job in client.jobs().to_list()] == ["j1", "j2"]
    stand_in.answer({"items": [{"feature": "age", "coefficient": 0.5, "standardised": 1.0}], "next": None})
    assert client.coefficients("churn", 1).to_pandas().feature.tolist() == ["age"]


def test_predictions_become_arrays_frames_and_tables(stand_in: StandIn) -> None:
    client = client_of(stand_in)
    stand_in.answer(BINARY)
    found = client.predict("churn", [[1.0], [2.0]])
    assert (len(found), repr(found)) == (2, "Predictions(2 outputs, version=3)")
    np.testing.assert_array_equal(found.to_numpy(), [0.25, 0.75])
    assert found.to_pandas().to_dict("list") == {"mean": [0.25, 0.75], "class": [0, 1]}
    assert found.to_arrow().column("class").to_pylist() == [0, 1]
    assert "0.25" in found._repr_html_()
    stand_in.answer(CLASSES)
    found = client.predict("pets", [[1.0], [2.0]])
    np.testing.assert_array_equal(found.to_numpy(), [[0.4, 0.6], [0.9, 0.1]])
    assert found.to_pandas().columns.tolist() == ["class", "probability of cat", "probability of dog"]
    assert found.to_dict()["outputs"][0]["class"] == "dog"


@pytest.mark.parametrize("words", [False, True])
def test_contributions_are_part_of_frames_and_tables(words: bool, stand_in: StandIn) -> None:
    made: list[dict[str, float]] = [{"age": 0.5, "(intercept)": 1.0}, {"pay" if words else "age": -0.5}]
    made[1]["(intercept)"] = 1.0
    stand_in.answer({"version": 3, "outputs": [{"mean": 0.5, "contributions": one} for one in made]})
    found = client_of(stand_in).predict("churn", [[1.0], [2.0]], explain=True)
    assert [dict(one) for one in found.to_arrow().column("contributions").to_pylist()] == made
    frame = found.to_pandas()
    if words:  # each text has other words
        assert [dict(one) for one in frame.contributions] == made
    else:
        assert frame["contribution of age"].tolist() == [0.5, -0.5]
        assert frame["contribution of (intercept)"].tolist() == [1.0, 1.0]


def test_a_table_of_predictions_has_the_same_forms() -> None:
    shares = pa.array([{"cat": 0.4, "dog": 0.6}])
    found = PredictionTable(pa.table({"id": ["a"], "class": ["dog"], "probabilities": shares}), 3)
    np.testing.assert_array_equal(found.to_numpy(), [[0.4, 0.6]])
    assert found.to_pandas().columns.tolist() == ["id", "class", "probability of cat", "probability of dog"]
    assert "1 rows, version=3" in repr(found)


def test_a_column_that_arrow_cannot_hold_is_named() -> None:
    with pytest.raises(FrameInvalid, match=r"'plan' has values of different types \(int, str\).*astype"):
        list(split(pd.DataFrame({"id": ["a", "b"], "plan": ["free", 3]})))
    with pytest.raises(FrameInvalid, match=r"'age' has values of different types \(float, str\)"):
        list(split(pd.DataFrame({"id": ["a", "b", "c"], "age": [40.5, "n/a", np.nan]})))
    with pytest.raises(FrameInvalid, match="'x'"):
        list(split({"id": ["a", "b"], "x": [[1.0], ["b"]], "y": [0, 1]}))


@pytest.mark.parametrize("inputs", [5, "age", None, {"age": 3}])
def test_inputs_that_are_not_rows_are_refused_before_anything_is_sent(stand_in: StandIn, inputs: Any) -> None:
    with pytest.raises(TypeError, match="Expected a list of inputs, an array or a frame"):
        client_of(stand_in).predict("churn", inputs)
    assert stand_in.asked == []


def test_wait_shows_a_bar_where_a_person_watches(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    stand_in.answer(JOB, {**JOB, "state": "succeeded", "progress": 1.0})
    monkeypatch.setattr(waiting, "is_interactive", lambda: True)
    assert client_of(stand_in).wait("j1").state == "succeeded"
    assert "Reading <b>the examples</b>" in screen.getvalue()
    monkeypatch.setattr(waiting, "is_interactive", lambda: False)
    screen.truncate(0)
    stand_in.answer({**JOB, "state": "succeeded"})
    client_of(stand_in).wait("j1")
    assert screen.getvalue().strip("\0") == ""


def test_the_bar_ends_when_waiting_is_interrupted(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(progress_bars.ProgressBar, "open", lambda self: setattr(self, "bar", Quiet()))
    monkeypatch.setattr(progress_bars.ProgressBar, "close", lambda self: closed.append(1))
    stand_in.answer(JOB)
    with pytest.raises(TimeoutError):
        client_of(stand_in).wait("j1", progress=True, timeout=0)
    assert closed
    assert isinstance(waiting.reporter_of(True), ProgressBar)
    assert waiting.reporter_of(False) is None


class Quiet:
    def update(self, *_: Any, **__: Any) -> None:
        pass


def test_every_response_has_the_methods_of_a_response() -> None:
    kinds = [
        kind for kind in vars(responses).values() if isinstance(kind, type) and issubclass(kind, responses.Response)
    ]
    assert len(kinds) > 30
    assert all(hasattr(kind, "to_dict") and hasattr(kind, "_repr_html_") for kind in kinds)
