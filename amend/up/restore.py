"""The ``amend restore`` command: restores a backup while nothing else can start in the same home folder."""

import os
import subprocess
import sys
from pathlib import Path

from amend.commands.connection import fail
from amend.up.preflight import CannotStart, lock_home


def restore(folder: Path, lossy: bool) -> int:
    """Restore a backup and return the exit status."""
    os.umask(0o077)
    home = Path(os.environ.get("AMEND_HOME") or "~/.amend").expanduser().absolute()
    try:
        lock = lock_home(home)
    except CannotStart as problem:
        fail(str(problem))
    except OSError as error:
        fail(f"AMEND_HOME: cannot use {error.filename} ({error.strerror}).")
    command = [sys.executable, "-P", "-m", "migrations.backup", "restore", str(folder), *(["--lossy"] if lossy else [])]
    try:
        return subprocess.run(command).returncode
    finally:
        os.close(lock)
