"""Checks of the source code itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import core

ROOT = Path(core.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_pickled(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert not {name.split(".")[0] for name in imported} & UNSAFE
    # torch's own save and load are pickle by another name
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not calls & {"torch.save", "torch.load", "numpy.load", "np.load"}


def test_the_scheduler_does_not_import_torch() -> None:
    """It takes longer to import than a tick, and more memory than all the rest."""
    code = "import sys, worker.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
