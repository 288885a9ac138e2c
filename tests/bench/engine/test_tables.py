"""Targets are met or not by their figures alone."""

from __future__ import annotations

from bench.engine.tables import Report, Target


def test_the_verdict_lists_met_and_missed_targets() -> None:
    targets = [
        Target("fast", 31.0, 30, at_least=True),
        Target("slow", 29.0, 30, at_least=True),
        Target("small", 0.01, 0.01),
        Target("unknown", None, 1),
        Target("no number", float("nan"), 1),
    ]
    met, missed, unknown = Report("", "", {}, targets=targets).verdict()
    assert met == "met: fast: 31 (>= 30); small: 0.01 (<= 0.01)"
    assert missed == "NOT met: slow: 29 (>= 30)"
    assert "unknown" in unknown
    assert "no number" in unknown


def test_figures_that_are_missing_leave_a_cell_empty() -> None:
    report = Report("", "", {"name": "|", "share": "share|.1f"}, [{"name": "a", "share": 1.25}, {"name": "b"}])
    table = report.table()
    assert list(table.columns[1].cells) == ["1.2", ""]
