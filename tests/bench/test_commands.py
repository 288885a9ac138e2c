"""`amend bench`: what the help lists is what there is, and files are asked for only where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from amend.commands.processes import BENCHMARKS
from bench.__main__ import PARTS, app
from bench.engine import parts
from bench.paper import run


def test_the_help_lists_all_parts() -> None:
    assert [*PARTS] == [*parts()]


def test_only_what_reads_files_asks_for_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--data is required for usps.npz, a7a"):
        run(None, None, tmp_path, only="", processes=1)
    with pytest.raises(SystemExit, match="No part has 'digits-nothing'"):
        run(None, None, tmp_path, only="digits-nothing", processes=1)


def test_the_command_line_offers_every_benchmark() -> None:
    assert BENCHMARKS.keys() == {command.name or command.callback.__name__ for command in app.registered_commands}
