"""What the Dockerfile says, and what of it can be done without a container engine: the layer with Amend itself."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from docker.utils.build import exclude_paths

ROOT = Path(__file__).resolve().parents[2]


class Stage(NamedTuple):
    """One of the Dockerfile's stages."""

    name: str
    base: str
    steps: list[tuple[str, str]]
    """Instructions with what they are given, in order."""

    def given(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]

    def environment(self, before: dict[str, str]) -> dict[str, str]:
        """What processes find in their environment."""
        for text in self.given("ENV"):
            for pair in shlex.split(text):
                name, value = pair.split("=", 1)
                before = {**before, name: value.replace("${PATH}", before.get("PATH", ""))}
        return before


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by their names, in order."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            base, _, name = rest.split()
            found[name] = Stage(name, base, [])
        elif found:
            list(found.values())[-1].steps.append((instruction, rest))
    return found


def copy_context(folder: Path) -> None:
    """Copy what `COPY . ./` gets: all files that .dockerignore leaves over, but the two that an engine itself reads."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    for path in exclude_paths(str(ROOT), patterns):
        if (ROOT / path).is_file() and path not in ("Dockerfile", ".dockerignore"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)


class Installed(NamedTuple):
    """Amend as it is in the image, installed by the command of the Dockerfile, beside the packages of this Python."""

    prefix: Path

    @property
    def packages(self) -> Path:
        return next(self.prefix.glob("lib/python*/site-packages"))

    @property
    def environment(self) -> dict[str, str]:
        """That of a process in the image, as far as it has to do with programs; none of our own settings."""
        path = f"{self.prefix / 'bin'}:{Path(sys.executable).parent}:{os.defpath}"
        return {"PATH": path, "PYTHONPATH": str(self.packages), "OMP_NUM_THREADS": "1"}


def install(folder: Path) -> Installed:
    """Carry out the stage `application`."""
    source, prefix = folder / "source", folder / "application"
    copy_context(source)
    (command,) = stages()["application"].given("RUN")
    # the tools to build it with are here, and need not be fetched
    pip = f"{sys.executable} -m pip install --no-build-isolation --quiet --ignore-installed"
    command = command.replace("/application", str(prefix)).replace("python -m", f"{sys.executable} -m")
    subprocess.run(["sh", "-ec", command.replace("pip install", pip)], cwd=source, check=True)
    return Installed(prefix)
