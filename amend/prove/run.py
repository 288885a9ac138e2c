"""The ``amend prove`` command: starts two services, and compares them at the end of the same history."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from amend.commands import output
from amend.demo.stack import NotReady, Stack
from amend.prove.comparison import compare
from amend.prove.history import Step, history
from amend.prove.readout import Readout, TwinReader
from amend.prove.report import Report
from amend.prove.twin import StepFailed, Twin

NAMES = ("ada", "bob")
SETTINGS = {
    # The same secret: hashes of retained people and examples are then the same.
    "AMEND_SECRET_KEY": "twins" * 9,
    "AMEND_TICK_SECONDS": "0.5",
    # The order in which threads add up numbers must not matter here.
    "OMP_NUM_THREADS": "1",
}

Say = Callable[[str], None]


def run(folder: Path, seed: int, events: int, models: tuple[str, ...] = ()) -> int:
    """Run the twins, write the report to a folder, and return the exit status. By default, they have all models."""
    say = output.console().print
    try:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            results = list(pool.map(lambda name: live(name, list(history(seed, name, events, models)), say), NAMES))
    except (NotReady, StepFailed, httpx.HTTPError, OSError) as error:
        say(f"The twins could not be compared: {error}")
        return 1
    (first, readout), (second, other) = results
    report = Report(
        version=importlib.metadata.version("amend"),
        seed=seed,
        events=events,
        requests=len(first.responses),
        erasures=sum(step.erasure for step, _ in first.responses),
        erased_names=len(first.erased_names()) + len(second.erased_names()),
        traces=[f"{twin.name}: {file}" for twin in (first, second) for file in twin.traces],
        comparison=compare(readout, other),
    )
    files = report.write(folder)
    say(report.as_text(), markup=False, highlight=False)
    say(f"Report: {files[0]}, {files[1]}")
    return 0 if report.passed else 1


def live(name: str, steps: Sequence[Step], say: Say) -> tuple[Twin, Readout]:
    """The life of a twin; returns it and everything that was read at the end."""
    with Stack(**SETTINGS) as stack:
        stack.wait_until_ready(lambda _fraction, _phrase: None)
        twin = Twin(name, stack.home, stack.url, stack.key, stack.mlflow_url)
        for index, step in enumerate(steps):
            stack.check_running()
            twin.perform(step)
            if index % 10 == 0:
                say(f"{name}: request {index + 1} of {len(steps)}")
        twin.traces = twin.find_traces()
        return twin, TwinReader(twin).read()
