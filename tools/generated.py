"""What all generators of source files share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

RUFF = Path(sys.executable).parent / "ruff"


def docstring(text: str) -> Iterator[str]:
    """The lines of a docstring within a class."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    lines = "\n\n".join(textwrap.fill(paragraph, 110) for paragraph in paragraphs).splitlines()
    if lines:
        lines = [f'"""{lines[0]}', *lines[1:]]
        yield from (f"    {line}".rstrip() for line in [*lines[:-1], f'{lines[-1]}"""'])


def write_or_check(target: Path, source: str) -> None:
    """Write a generated file; with --check, exit with status 1 if the present file differs."""
    command = [str(RUFF), "format", "-q", "--stdin-filename", str(target), "-"]
    source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    if "--check" not in sys.argv:
        target.write_text(source)
    elif not target.exists() or target.read_text() != source:
        sys.exit(f"{target} is out of date. Run `make types` and commit the result.")
