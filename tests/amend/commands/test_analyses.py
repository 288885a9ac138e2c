"""Previews on the command line: what is shown, and when a preview is refused."""

from __future__ import annotations

from typing import Any

from tests.amend.commands.responses import AT
from tests.amend.conftest import StandIn


def previewed(removed: int, unknown: list[str]) -> dict[str, Any]:
    result = {
        "before": {"loss": 0.5},
        "after": {"loss": 0.4},
        "difference": {"loss": -0.1, "loss_se": 0.01},
        "gate": {"passed": True},
        "bound": 0.0123,
        "removed": removed,
        "added": 0,
        "unknown": unknown,
    }
    about = {"id": "a1", "model": "churn", "kind": "preview", "request": {}, "position": 60, "version": 1, "job": None}
    return {**about, "result": result, "cost": None, "requested_by": None, "created_at": AT, "finished_at": AT}


def test_a_preview_shows_its_extent_the_gate_and_the_bound(stand_in: StandIn) -> None:
    stand_in.answer(previewed(3, ["zz"]))
    shown = stand_in.run("analyses", "preview", "churn", "--remove-id", "a", "--remove-id", "zz")
    assert shown.exit_code == 0, shown.stderr
    assert "3 removed, 0 added. Not found: zz. The gate would pass. Bound: 0.0123." in shown.stderr
    assert shown.stdout.split()[-5:] == ["loss", "0.5", "0.4", "-0.1", "0.01"]


def test_a_preview_of_a_removal_that_matches_nothing_fails(stand_in: StandIn) -> None:
    stand_in.answer(previewed(0, ["nosuch"]))
    shown = stand_in.run("analyses", "preview", "churn", "--remove-source", "nosuch")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "No example matches" in shown.stderr
