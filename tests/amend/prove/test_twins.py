"""Twins: after an erasure, what is stored depends only on the retained examples and their positions.

`amend prove` compares two complete services; here the same steps and the same comparison run on two small ones, without
MLflow.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from amend.prove.comparison import compare, kind_of
from amend.prove.history import ModelHistory, Random, Step, specs
from amend.prove.readout import Readout, TwinReader
from amend.prove.run import NAMES
from amend.prove.twin import Twin
from tests.forkserver import forkserver
from tests.worker.deployment import running_deployment

pytestmark = [pytest.mark.timing, pytest.mark.xdist_group("twins")]


def short_history(twin: str) -> Iterator[Step]:
    """A table, a wide model and several labels: examples of two people each, who are erased after a correction and a
    retrain."""
    kept, erased = Random("retained"), Random(f"erased {twin}")
    for name in ("logistic", "wide", "labels"):
        model = ModelHistory(name, specs()[name], kept, erased, twin)
        yield model.create()
        yield model.add(80, 6, 2)
        yield model.adapt()
        if name == "logistic":
            yield from model.correct()
            yield model.retrain()
        yield from model.erase_all()
        yield model.add(20, 4, 0)
        yield model.adapt()


def live(folder: Path, name: str) -> tuple[Twin, Readout]:
    settings = {"AMEND_SECRET_KEY": "twins" * 9, "AMEND_TICK_SECONDS": "0.1"}
    with running_deployment(folder, **settings) as stack:
        twin = Twin(name, folder / "home", stack.url, stack.admin_key)
        for step in short_history(name):
            twin.perform(step)
        twin.traces = twin.find_traces()
        return twin, TwinReader(twin).read()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Twin, Readout]]:
    folders = [tmp_path_factory.mktemp(name) for name in NAMES]
    forkserver()  # once, before two threads ask for it
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return list(pool.map(live, folders, NAMES))


def test_what_is_stored_after_an_erasure_does_not_depend_on_erased_content(twins: list[tuple[Twin, Readout]]) -> None:
    (first, readout), (second, other) = twins
    assert first.erased_names().isdisjoint(second.erased_names())
    assert (first.traces, second.traces) == ([], [])
    found = compare(readout, other)
    assert found.differences == []
    assert found.compared["database/examples"] > 1000
    assert found.compared["files/artifacts"] >= 2
    assert found.compared["rest"] > 1000


def test_positions_of_erased_examples_remain_visible(twins: list[tuple[Twin, Readout]]) -> None:
    """A limit that the documents state: the number and the positions of erased examples are not hidden."""
    for _, readout in twins:
        places = [
            place for place in readout if place.startswith("database/examples/1,") and place.endswith("/position")
        ]
        positions = {readout[place] for place in places}
        assert len(positions) < max(positions)


LEAKS = {
    "": "UPDATE models SET name = name",
    "an example that was not deleted": "INSERT INTO examples SELECT * FROM kept",
    "a retained example with another content": "UPDATE examples SET weight = 7 WHERE position = 1",
    "a digit of a metric": "UPDATE versions SET metrics = replace(metrics, '0.', '0.0') WHERE state = 'champion'",
    "figures of a purged version": "UPDATE versions SET metrics = '{\"loss\": 0.25}' WHERE state = 'purged'",
    "the hash of a purged version": "UPDATE versions SET sha256 = 'ab' WHERE state = 'purged'",
    "the hash of an erased person": "UPDATE erasure_subjects SET subject = token",
    "the message of a job": "UPDATE jobs SET message = 'loss 0.25'",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_in_the_database_is_found(twins: list[tuple[Twin, Readout]], leak: str, tmp_path: Path) -> None:
    (_, readout), (second, _) = twins
    file = tmp_path / "amend.db"
    with closing(sqlite3.connect(second.home / "amend.db")) as original, closing(sqlite3.connect(file)) as copy:
        original.backup(copy)
        copy.execute("CREATE TEMP TABLE kept AS SELECT * FROM examples LIMIT 1")
        copy.execute("UPDATE kept SET position = (SELECT max(position) + 1 FROM examples), id = 'back'")
        assert copy.execute(LEAKS[leak]).rowcount > 0
        copy.commit()
    reader = TwinReader(second)
    places = places_of_differences(readout, reader.rename(dict(reader.read_database("database", file))))
    assert bool(places) == bool(leak), places


def test_a_leak_in_a_file_is_found(twins: list[tuple[Twin, Readout]], tmp_path: Path) -> None:
    (_, readout), (second, _) = twins
    weights = next(f for f in sorted((second.home / "artifacts").rglob("*")) if f.suffix == ".safetensors")
    content, reader = bytearray(weights.read_bytes()), TwinReader(second)
    content[-1] ^= 1
    place = f"files/{weights.relative_to(second.home)}"
    assert places_of_differences(readout, reader.rename(dict(reader.flatten(place, weights.read_bytes())))) == []
    [found] = places_of_differences(readout, reader.rename(dict(reader.flatten(place, bytes(content)))))
    assert found.startswith("files/artifacts/")
    # a name in a file that is not compared, such as a log, is found by the search for names
    log = second.home / "worker.log"
    log.write_text("".join(name.decode() for name in list(second.erased_names())[:1]))
    assert second.find_traces() == ["worker.log"]
    log.unlink()


def places_of_differences(expected: Readout, found: Readout) -> list[str]:
    """The differences in the part of a readout that was read again."""
    kinds = {kind_of(place) for place in found}
    part = {place: value for place, value in expected.items() if kind_of(place) in kinds and place in found}
    return [difference.place for difference in compare(part, found).differences]


def test_a_difference_outside_the_declared_list_is_reported() -> None:
    same = {"database/versions/1,2/method": "kprior", "database/jobs/<jobs 1>/created_at": "today"}
    other = {**same, "database/versions/1,2/method": "retrain", "database/jobs/<jobs 1>/created_at": "tomorrow"}
    assert [d.place for d in compare(same, other).differences] == ["database/versions/1,2/method"]
    assert [d.second for d in compare(same, {}).differences] == ["(nothing)"]
