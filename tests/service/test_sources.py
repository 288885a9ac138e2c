"""Rules about the source code."""

from __future__ import annotations

import ast
from pathlib import Path

import service
import worker

ROOTS = [Path(package.__file__).parent for package in (service, worker)]


def holds_sql(path: Path) -> bool:
    """Whether a file makes statements of its own, rather than call the queries of core."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    return "sqlalchemy" in imported or bool(calls & {"session.scalar", "session.scalars", "session.execute"})


def test_neither_endpoints_nor_jobs_hold_sql() -> None:
    found = [path for root in ROOTS for path in sorted(root.rglob("*.py")) if holds_sql(path)]
    assert found == []
