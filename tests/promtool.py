"""promtool, which checks what is written for Prometheus.

An installed one is used; else Debian's package is unpacked in the folder for temporary files. Where neither can be, the
test that needs it is skipped, and `tests/conftest.py` says so at the end.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(tempfile.gettempdir()) / "amend-promtool"
DOWNLOAD_SECONDS = 120


def find() -> str:
    """The path of promtool."""
    found = shutil.which("promtool") or shutil.which("promtool", path=FOLDER / "usr" / "bin")
    if found is None and shutil.which("apt-get"):
        with tempfile.TemporaryDirectory() as folder:
            download(Path(folder))
        found = shutil.which("promtool", path=FOLDER / "usr" / "bin")
    if found is None:
        pytest.skip("NOT RUN: there is no promtool here, and none could be had (apt-get download prometheus)")
    return found


def download(folder: Path) -> None:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": DOWNLOAD_SECONDS, "check": False}
    command = ["apt-get", "download", "prometheus"]
    if subprocess.run(command, cwd=folder, **quiet).returncode:  # type: ignore[call-overload]
        subprocess.run(["apt-get", "update"], **quiet)  # type: ignore[call-overload]
        subprocess.run(command, cwd=folder, **quiet)  # type: ignore[call-overload]
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, FOLDER], **quiet)  # type: ignore[call-overload]


def run(*arguments: str | Path, given: str = "") -> None:
    """Run promtool; an AssertionError with what it says if it finds something wrong."""
    done = subprocess.run([find(), *arguments], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
