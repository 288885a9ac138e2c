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
# The linear model gets each image once instead of five times, the network is trained for fewer epochs, and there are
# fewer customers. Everything else is as users see it.
SMALLER = (
    "from amend.demo import customers, digits, digits_tour; "
    "digits.SHIFTS = digits.SHIFTS[:1]; digits_tour.MAX_EPOCHS = 50; "
    "customers.COUNT, customers.DAILY_JOINERS, customers.DAILY_LEAVERS = 20_000, 40, 10; "
)
ROW = re.compile(r"│ digits-(linear|mlp) +│ (.*?) +│ +([\d.]+) % │ +([\d.]+) % │ +([\d.]+) % │ +(\S+) │")


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
    rows = ROW.findall(ended.stdout)
    happened = ["9 added", "8 removed", "delta 10 → 1", "degree 2 → 1", "person erased"]
    assert [what for model, what, *_ in rows if model == "linear"] == happened
    happened[2:4] = ["delta 0.5 → 0.2"]
    assert [what for model, what, *_ in rows if model == "mlp"] == happened
    for model, what, adapted, retrained, differ, bound in rows:
        assert abs(float(adapted) - float(retrained)) <= (0.3 if model == "linear" else 2.5), what
        assert float(differ) <= (0.3 if model == "linear" else 3.0), what
        assert (bound == "-") == (model == "mlp"), what
        assert bound == "-" or float(bound) <= 0.01
    assert len(re.findall(r"http://127\.0\.0\.1:\d+/#/experiments/\d+/runs", ended.stdout)) == 2
    assert "the chain of receipts is valid" in ended.stdout
    said = " ".join(ended.stdout.split())
    assert "50 changes in one day to a model of 20 000 customers: adapted in" in said
    assert "with 0 passes over all rows, certified to be within" in said
    assert said.endswith(" s.")


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
    error = StepFailed("Remove the digit 8")
    error.__cause__ = JobFailed(Job(**values))  # type: ignore[arg-type]
    with stack.Stack() as broken:
        (broken.home / "logs").mkdir(exist_ok=True)
        (broken.home / "logs" / "worker.log").write_text("first\nlast words\n")
        run.explain(Screen(output.console()), broken, error)
    assert 'Step "Remove the digit 8" failed: Job j1 failed: solver_failed: no luck' in said.getvalue()
    assert "the log of worker:\n  first\n  last words\n" in said.getvalue()
    assert (broken.home / "logs" / "worker.log").exists()
