"""A headless Chromium for tests that look at pages as people do.

An installed one is used. Without one it is installed: by apt-get (Debian, as root), else Playwright's own in the user's
cache. Where neither can be, the tests that need it are skipped, and `tests/conftest.py` says so at the end, loudly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Error as PlaywrightError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DOWNLOAD_SECONDS = 300


def installed() -> str | None:
    """The path of a browser of this machine, installed first if need be."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        run("apt-get", "update")
        run("apt-get", "install", "-y", "--no-install-recommends", "chromium")
        found = shutil.which("chromium")
    return found


def downloaded(path: str) -> str | None:
    """Playwright's own browser, which belongs at this path."""
    if not Path(path).exists():
        run(sys.executable, "-m", "playwright", "install", "chromium")
    return path if Path(path).exists() else None


def run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    subprocess.run(command, check=False, env=environment, timeout=DOWNLOAD_SECONDS, **quiet)


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = installed() or downloaded(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("NOT RUN: there is no Chromium here, and none could be installed (apt-get install chromium)")
        try:
            chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except PlaywrightError as error:
            pytest.skip(f"NOT RUN: {path} does not start here ({error.message.splitlines()[0]})")
        try:
            yield chromium
        finally:
            chromium.close()
