"""What the marks of tests/conftest.py do, on a suite of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITE = """
import pytest

runs = []

@pytest.mark.timing
def test_a_slow_process():
    runs.append("slow")
    assert len(runs) == 2

@pytest.mark.timing
def test_a_process_that_never_answers():
    assert False

def test_a_random_result():
    runs.append("random")
    assert len(runs) == 4

@pytest.mark.grid(4)
@pytest.mark.parametrize("case", range(100))
def test_a_grid(case):
    pass
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_suite.py").write_text(SUITE)
    marks = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(folder),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rf", *marks, *options, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_only_tests_marked_as_timing_dependent_are_run_again(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        said = run(tmp_path, "-k", "not grid", *options)
        assert "2 failed, 1 passed" in said
        failed = re.findall(r"^FAILED .*::(\w+)", said, re.MULTILINE)
        assert sorted(failed) == ["test_a_process_that_never_answers", "test_a_random_result"]
        _, _, flaky = said.partition("flaky: failed at first, passed when run again")
        assert flaky.splitlines()[1].endswith("test_suite.py::test_a_slow_process")


def test_a_share_of_a_grid_runs(tmp_path: Path) -> None:
    said = run(tmp_path)
    passed = int(said.rsplit(" passed", 1)[0].rsplit(" ", 1)[1]) - 1
    assert 15 <= passed <= 35
