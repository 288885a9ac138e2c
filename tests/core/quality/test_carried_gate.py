"""What an erasure leaves of a comparison with a purged confirmed version: a rounded number that counts afterwards."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from core.models.policy import GatePolicy
from core.promotion.gate import ComparedRows, Reference, run_gate
from core.quality.erased_records import forget_versions
from core.quality.scored_rows import ScoredRows
from core.tables.documents import GateComparison, GateDocument

ROWS = 2000


def compared(relative: float, **more: float) -> GateDocument:
    """The gate of a version that is worse than version 1, which a person confirmed, with 0.2 % standard error."""
    numbers = {"champion": 0.5, "candidate": 0.5 * (1 + relative), "difference": 0.5 * relative, "difference_se": 0.001}
    found = {"metric": "loss", "version": 1, **numbers, "relative": relative, "rows": ROWS, "passed": True, **more}
    return cast(GateDocument, {**found, "version": 2, "action": "reject", "confirmed": cast(GateComparison, found)})


def test_the_rounded_deterioration_remains() -> None:
    found = [forget_versions(compared(0.013), {1})["confirmed"] for _ in range(400)]
    carried = [one.get("carried", 0.0) for one in found]
    assert all(one["relative"] is None and one["candidate"] is None for one in found)
    assert all(abs(value / 0.001 - round(value / 0.001)) < 1e-6 for value in carried)  # steps of two errors or so
    assert np.mean(carried) == pytest.approx(0.013, abs=0.001)
    assert len(set(carried)) < 20


def test_deteriorations_before_several_erasures_add_up() -> None:
    twice = [forget_versions(compared(0.02, carried=0.03), {1})["confirmed"]["carried"] for _ in range(400)]
    assert np.mean(twice) == pytest.approx(1.03 * 1.02 - 1, abs=0.001)


def test_forgetting_twice_counts_once() -> None:
    once = forget_versions(compared(0.04), {1})
    assert forget_versions(once, {1}) == once


def test_what_remains_is_not_allowed_again() -> None:
    rng = np.random.default_rng(0)
    loss, score, y = rng.random(ROWS), rng.random((ROWS, 1)), (rng.random(ROWS) < 0.5).astype(float)
    old, new = (ScoredRows.of("binary", one, score, y, np.ones(ROWS)) for one in (loss, 1.03 * loss))
    reference = Reference(4, ROWS, ComparedRows(np.arange(1, ROWS + 1), old, new))
    kept = Reference(4, ROWS, reference.rows, carried=0.03)
    assert run_gate(reference, reference, [], GatePolicy())["passed"] is True
    gate = run_gate(reference, kept, [], GatePolicy())
    assert (gate["passed"], gate["confirmed"]["passed"], gate["confirmed"]["carried"]) == (False, False, 0.03)
