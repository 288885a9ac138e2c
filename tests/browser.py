"""A headless Chromium for tests that look at pages as people do.

An installed one is used; without one it is installed where that is possible (Debian, as root). Elsewhere the tests that
need it are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    """The path of a browser, installed first if need be."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *command], check=False, env=environment, **quiet)
        found = shutil.which("chromium")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    path = program()
    if path is None:
        pytest.skip("NOT RUN: there is no Chromium here, and it could not be installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()
