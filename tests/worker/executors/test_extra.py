"""Ray is an extra: without it nothing is missing, unless it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker import __main__ as worker


def test_a_missing_extra_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMEND_HOME", str(tmp_path))
    monkeypatch.setenv("AMEND_RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.setattr(worker, "find_spec", lambda name: None)
    mask = os.umask(0)
    try:
        with pytest.raises(SystemExit, match="^AMEND_RAY_ADDRESS is set, but Ray is not installed. Run: pip install"):
            worker.main()
    finally:
        os.umask(mask)
