"""`amend demo`: the whole tour, as a user sees it; and what it says if something is wrong."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from amend.commands import output
from amend.demo import run, stack
from amend.demo.screen import Screen
from amend.demo.steps import StepFailed
from amend.errors import JobFailed
from amend.responses import Failure, Job

pytestmark = pytest.mark.timing

AMEND = [sys.executable, "-P", "-c", "from amend.cli import main; main()"]
# Fewer customers, and more of them new, so that the effect of each step is visible. Everything else is as users see it.
SMALLER = (
    "from amend.demo import customers; "
    "customers.COUNT, customers.SOURCE_COUNT, customers.BAD_COUNT = 20_000, 1_500, 4_000; "
    "customers.DAILY_JOINERS, customers.DAILY_LEAVERS = 200, 20; "
)
DAY = re.compile(r"accuracy on the new customers ([\d.]+) % \(never updated: ([\d.]+) %\); then adapted in")
ROW = re.compile(r"│ (.*?) +│ +[\d.]+ s │ +(\d+) │ +([\d.]+) % │ +[\d.]+ x │ +(?:-|[\d.]+ x) │")


def processes_of(folder: Path) -> list[str]:
    """The processes that were told to put their temporary files into a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in place.read_bytes():
                found.append(place.parent.joinpath("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_tour_ends_by_itself_with_the_table_and_leaves_the_figure_alone(tmp_path: Path) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    figure = tmp_path / "figure.png"
    environment = {**os.environ, "TMPDIR": str(own), "AMEND_HOME": str(tmp_path / "users"), "AMEND_PORT": "1"}
    amend = [*AMEND[:-1], SMALLER + AMEND[-1]]
    ended = subprocess.run([*amend, "demo", "--figure", figure], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert processes_of(own) == []
    assert list(own.glob("amend-demo-*")) == []
    assert not (tmp_path / "users").exists()
    assert figure.read_bytes().startswith(b"\x89PNG")
    said = " ".join(ended.stdout.split())
    (first, frozen), *later = [(float(adapted), float(frozen)) for adapted, frozen in DAY.findall(said)]
    assert first == frozen  # there is nothing to know about the new phone on the first day
    assert len(later) == 6
    assert all(adapted > frozen + 5 for adapted, frozen in later)
    assert "4 000 rows are in quarantine; version 8 keeps serving" in said
    assert re.search(r"partner list without its 1 500 customers, the holdout loss would change by -0", said)
    assert re.search(
        r"; the gate would pass; .* 5\. Remove the source 'partner list' churn loss [\d.]+, as previewed", said
    )
    assert "8 of 8 checks passed" in said
    assert "0.0 % of predictions differ from those of the adapted version" in said
    rows = ROW.findall(ended.stdout)
    assert [what for what, *_ in rows] == [
        "a day: 220 changes",
        "4 000 bad rows rejected",
        "removal of a source previewed",
        "source of 1 500 rows removed",
        "delta 1 → 10",
        "column dropped",
        "customer erased, with receipt",
    ]
    assert all(float(bound) <= 1 for *_, bound in rows)
    assert len(re.findall(r"http://127\.0\.0\.1:\d+/#/experiments/\d+/runs", ended.stdout)) == 1
    assert "220 changes a day to a model of 20 000 customers: adapted in" in said
    assert said.endswith("of the new customers were predicted correctly.")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_tour_that_is_stopped_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*AMEND, "demo"], env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        wait_until(lambda: len(list(tmp_path.glob("amend-demo-*/logs/*.log"))) > 1)
        process.send_signal(how)
        assert process.wait(60) == (run.INTERRUPTED if how == signal.SIGTERM else -how)
    wait_until(lambda: processes_of(tmp_path) == [])
    assert bool(list(tmp_path.glob("amend-demo-*"))) == (how == signal.SIGKILL)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> io.StringIO:
    """What a tour in this process prints; its files are in the test's own folder."""
    printed = io.StringIO()
    monkeypatch.setattr(output, "console", lambda: Console(file=printed, width=1000))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return printed


def test_a_stack_that_does_not_start_is_explained(said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "print('disk: no room at all', flush=True); raise SystemExit(1)"
    monkeypatch.setattr(stack, "UP", [sys.executable, "-c", broken])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert run.run(Path("never.png"), keep=False) == run.FAILED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "The demo failed: amend up has ended." in said.getvalue()
    assert "  disk: no room at all" in said.getvalue()


def test_a_step_that_fails_is_named_with_the_last_words_of_the_worker(said: io.StringIO) -> None:
    failed = Job.__struct_fields__  # all but these are beside the point
    values = dict.fromkeys(failed) | {
        "id": "j1",
        "state": "failed",
        "error": Failure(code="solver_failed", detail="no luck"),
    }
    error = StepFailed("Remove a source")
    error.__cause__ = JobFailed(Job(**values))  # type: ignore[arg-type]
    with stack.Stack() as broken:
        (broken.home / "logs").mkdir(exist_ok=True)
        (broken.home / "logs" / "worker.log").write_text("first\nlast words\n")
        run.explain(Screen(output.console()), broken, error)
    assert 'Step "Remove a source" failed: Job j1 failed: solver_failed: no luck' in said.getvalue()
    assert "the log of worker:\n  first\n  last words\n" in said.getvalue()
    assert (broken.home / "logs" / "worker.log").exists()
