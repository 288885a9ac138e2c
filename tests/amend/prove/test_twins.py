"""Twins: after an erasure, what is stored depends only on the retained examples and their positions.

`amend prove` compares two complete services; here the same steps and the same comparison run on two small ones, without
MLflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amend.prove.comparison import compare
from amend.prove.history import ModelHistory, Random, Step, specs
from amend.prove.readout import Reader, Readout
from amend.prove.run import NAMES
from amend.prove.twin import Twin
from tests.worker.deployment import Deployment


def short_history(twin: str) -> Iterator[Step]:
    """A table and a wide model: examples of two people each, who are erased after a correction and a retrain."""
    kept, erased = Random("retained"), Random(f"erased {twin}")
    for name in ("logistic", "wide"):
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
    stack = Deployment(folder, **settings)
    try:
        stack.add("worker.broker")
        stack.start()
        stack.add("worker")
        stack.add("worker.scheduler")
        stack.wait_until(stack.ready)
        twin = Twin(name, folder / "home", stack.url, stack.admin_key)
        for step in short_history(name):
            twin.perform(step)
        twin.traces = twin.find_traces()
        return twin, Reader(twin).read()
    finally:
        stack.stop()


@pytest.mark.timing
def test_what_is_stored_after_an_erasure_does_not_depend_on_erased_content(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in NAMES]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(len(NAMES)) as pool:
        (first, readout), (second, other) = pool.map(live, folders, NAMES)
    assert first.erased_names().isdisjoint(second.erased_names())
    assert (first.traces, second.traces) == ([], [])
    found = compare(readout, other)
    assert found.differences == []
    assert found.compared["database/examples"] > 1000
    assert found.compared["files/artifacts"] >= 2
    assert found.compared["rest"] > 1000


def test_a_difference_outside_the_declared_list_is_reported() -> None:
    same = {"database/versions/1,2/method": "kprior", "database/jobs/<jobs 1>/created_at": "today"}
    other = {**same, "database/versions/1,2/method": "retrain", "database/jobs/<jobs 1>/created_at": "tomorrow"}
    assert [d.place for d in compare(same, other).differences] == ["database/versions/1,2/method"]
    assert [d.second for d in compare(same, {}).differences] == ["(nothing)"]
