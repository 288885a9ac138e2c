"""Frames, generators and columns: they are added in batches, and predicted in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from amend import Client, Invalid, NotFound, example_batches
from tests.amend.operations.data import columns
from tests.worker.deployment import Deployment

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_a_frame_is_predicted_by_one_version_in_its_own_order(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"age": [20, None, 60, 30] * 5, "plan": ["a", "b", "a", None] * 5, "y": [0, 1, 1, 0] * 5})
    described = [{"name": "plan", "type": "category", "values": ["a", "b"]}, {"name": "age", "type": "number"}]
    name = deployment.new_model(input={"kind": "table", "columns": described}, policy={"holdout": 0})
    client.add_examples(name, frame.assign(id=[f"e{i}" for i in range(20)]))
    client.wait(client.adapt(name))
    rows = [{"age": None if np.isnan(a) else a, "plan": None if pd.isna(p) else p} for a, p, _ in frame.to_numpy()]
    expected = [output.mean for output in client.predict(name, rows).outputs]
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 7)
    versions: list[int | Literal["champion"] | None] = [None, 1, "champion"]
    for version in versions:
        found = client.predict(name, frame, version=version)
        # sums of another number of rows may be rounded in another way
        assert [output.mean for output in found.outputs] == pytest.approx(expected, rel=1e-12)
        assert found.version == 1
    with pytest.raises(ValueError, match="The frame lacks 'plan'"):
        client.predict(name, frame.drop(columns="plan"))
    with pytest.raises(ValueError, match="no rows"):
        client.predict(name, frame.head(0))


def test_sparse_rows_give_the_same_model_and_predictions_as_dense_rows(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = columns(40)
    dense["x"] = np.where(dense["x"] > 0, dense["x"], 0)
    name, matrix = deployment.new_model(), scipy.sparse.csr_array(dense["x"])
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 15)
    assert client.add_examples(name, {**dense, "x": matrix}).accepted == 40
    assert client.add_examples(name, dense).duplicates == 40
    client.wait(client.adapt(name))
    expected = [output.mean for output in client.predict(name, dense["x"].tolist()).outputs]
    assert len(expected) == 40
    assert [output.mean for output in client.predict(name, matrix).outputs] == pytest.approx(expected, rel=1e-12)


def test_a_model_is_made_from_a_frame_and_learns_its_rows(client: Client, deployment: Deployment) -> None:
    n = 40
    frame = pd.DataFrame(
        {
            "customer": [f"c{i}" for i in range(n)],
            "age": [None if i == 7 else 20 + i for i in range(n)],
            "plan": ["free", "paid", "trial", None] * 10,
            "member": pd.array([True, False, None, True] * 10, "boolean"),
            "since": pd.date_range("2024-01-01 12:00", periods=n, tz="Europe/Berlin"),
            "left": [i % 4 == 2 for i in range(n)],
        }
    )
    name = deployment.new_model() + "-frame"
    with pytest.raises(ValueError, match="'customer' has 40 different texts"):
        client.create_model(name, frame, target="left")
    made = client.create_model(name, frame, target="left", id="customer", policy={"holdout": 0})
    assert made.target == {"kind": "binary"}
    assert [(column["name"], column["type"]) for column in made.input["columns"]] == [
        ("age", "number"),
        ("plan", "category"),
        ("member", "boolean"),
        ("since", "date"),
    ]
    assert made.input["columns"][1] == {**made.input["columns"][1], "values": ["free", "paid", "trial"], "other": True}
    added = client.add_examples(name, frame, id="customer", subject="customer", target="left")
    assert added.accepted == n
    x = client.example(name, "c7").x
    assert x == {"age": None, "plan": None, "member": True, "since": "2024-01-08T11:00:00Z"}
    client.wait(client.adapt(name))
    features = frame[["age", "plan", "member", "since"]]
    found = client.predict(name, features).outputs
    assert [output.class_ for output in found] == [int(left) for left in frame["left"]]
    assert client.predict(name, features.assign(plan="never seen")).version == 1


def test_a_frame_and_a_generator_arrive_in_batches(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    table = {"kind": "table", "columns": [{"name": "a", "type": "number"}, {"name": "b", "type": "category"}]}
    table["columns"][1]["values"] = ["x", "y"]  # type: ignore[index]
    name = deployment.new_model(input=table)
    ids = [f"e{i}" for i in range(25)]
    frame = pd.DataFrame({"id": ids, "a": [np.nan, *range(24)], "b": pd.Categorical(["x", "y"] * 12 + [None])})
    added = client.add_examples(name, frame.assign(y=1))
    assert (added.accepted, added.first_position, added.last_position) == (25, 1, 25)
    assert client.example(name, "e0").x == {"a": None, "b": "x"}
    rows = ({"id": id, "x": {"a": i - 1 if i else None, "b": ["x", "y"][i % 2]}, "y": 1} for i, id in enumerate(ids))
    again = client.add_examples(name, (row for row in rows if row["id"] != "e24"))
    assert (again.accepted, again.duplicates) == (0, 24)


@pytest.mark.parametrize("suffix", [".parquet", ".csv.gz", ".ndjson"])
def test_a_file_arrives_in_batches_and_a_bad_row_is_named(
    suffix: str, client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    name = deployment.new_model(input={"kind": "table", "columns": [{"name": "age", "type": "number"}]})
    frame = pd.DataFrame({"key": [f"e{i}" for i in range(25)], "age": range(25), "left": [i % 2 for i in range(25)]})

    def write(frame: pd.DataFrame) -> Path:
        file = tmp_path / f"rows{suffix}"
        if suffix == ".parquet":
            frame.to_parquet(file, index=False)
        elif suffix == ".ndjson":
            rows = ({"id": row.key, "x": {"age": row.age}, "y": row.left} for row in frame.itertuples())
            file.write_text("\n".join(map(json.dumps, rows)))
        else:
            frame.to_csv(file, index=False)
        return file

    named = {} if suffix == ".ndjson" else {"id": "key", "target": "left"}
    with pytest.raises(Invalid) as caught:
        client.add_examples(name, write(frame.assign(left=[*frame["left"][:23], 7, 0])), **named)
    assert caught.value.errors[0]["loc"] == ["examples", 23, "y"]
    assert "examples.23.y" in str(caught.value)
    added = client.add_examples(name, write(frame), **named)
    assert (added.duplicates, added.accepted, added.last_position) == (20, 5, 25)
    assert client.example(name, "e24").x == {"age": 24}
    corrected = client.replace_examples(name, write(frame.assign(age=frame["age"] + 1)), **named)
    assert (corrected.replaced, client.example(name, "e24").x) == (25, {"age": 25})


def test_a_bad_example_is_named_by_its_place_among_all(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    name = deployment.new_model()
    good = columns(25)
    x = good["x"].copy()
    x[23, 1] = np.nan
    with pytest.raises(Invalid) as caught:
        client.add_examples(name, {**good, "x": x})
    assert caught.value.errors[0]["loc"] == ["examples", 23, "x"]
    added = client.add_examples(name, good)
    assert (added.duplicates, added.accepted, added.first_position) == (20, 5, 21)


def test_examples_are_corrected_one_by_one_and_by_a_frame(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, good = deployment.new_model(), columns(25)
    client.add_examples(name, good)
    client.wait(client.adapt(name))
    one = client.replace_example(name, good["id"][0], good["x"][0] + 1, 1)
    assert (one.replaced, one.position) == (1, 26)
    assert client.replace_example(name, good["id"][0], good["x"][0] + 1, 1).unchanged == 1
    monkeypatch.setattr(example_batches, "BATCH_ROWS", 10)
    moved = {**good, "x": good["x"] + 2}
    all_ = client.replace_examples(name, moved)
    assert (all_.replaced, all_.unchanged, all_.position) == (25, 0, 51)
    corrected = client.wait(all_)
    assert corrected is not None
    assert corrected.to_position >= 51
    assert [(change.kind, change.examples) for change in client.changes(name)][-1] == ("replaced", 1)
    with pytest.raises(NotFound) as caught:
        client.replace_examples(name, {**moved, "id": [*good["id"][:23], "nobody", "else"]})
    assert caught.value.errors[0]["loc"] == ["examples", 23]
