"""Logging to a full disk."""

from __future__ import annotations

import subprocess
import sys

FAILING = """
import logging
from core import logs

logs.configure("info")
try:
    raise ValueError("jane@example.org")
except ValueError as error:
    logging.getLogger("service").error("bug of %s", "jane@example.org", exc_info=error)
logs.request_line("request", "GET", "/healthz", 200, 0.1, None, None)
"""


def test_a_line_that_cannot_be_written_is_dropped() -> None:
    with open("/dev/full", "wb") as full:
        # unbuffered: else the interpreter itself complains at its end
        run = subprocess.run([sys.executable, "-u", "-c", FAILING], stdout=full, stderr=subprocess.PIPE)
    assert (run.returncode, run.stderr) == (0, b"")
