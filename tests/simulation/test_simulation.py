"""Simulated histories hold all properties, and the simulator detects broken variants of the product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.broken import VARIANTS
from tests.simulation.history import Laboratory
from tests.simulation.simulate import describe, shrink

SEEDS = 200
CHUNKS = 4
"""Tests that share the seeds, so that several processes can run them."""
SEARCHED_SEEDS = 60
"""Seeds among which a broken variant must fail."""
EXPECTED = {
    "lease without fencing": "job ended twice",
    "message before commit": "message before commit",
    "receipt before purge": "receipt before purge",
    "outdated snapshot": "promoted with erased data",
    "restore without replay": "erased example used",
}


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with Laboratory() as found:
        yield found


@pytest.mark.parametrize(
    "chunk", [pytest.param(i, marks=pytest.mark.xdist_group(f"simulation {i}")) for i in range(CHUNKS)]
)
def test_no_history_violates_a_property(laboratory: Laboratory, chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        result = laboratory.run(seed)
        if result.violation is not None:
            pytest.fail(describe(shrink(laboratory, result), trace=True))


def test_the_same_seed_gives_the_same_history(laboratory: Laboratory) -> None:
    for seed in (1, 2, 3):
        first, second = laboratory.run(seed), laboratory.run(seed)
        assert first.trace == second.trace
        assert first.coverage == second.coverage
    assert laboratory.run(1).trace != laboratory.run(2).trace


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_detected(laboratory: Laboratory, variant: str) -> None:
    with VARIANTS[variant]():
        for seed in range(SEARCHED_SEEDS):
            violation = laboratory.run(seed, replays=variant != "restore without replay").violation
            if violation is not None and violation.kind == EXPECTED[variant]:
                return
    pytest.fail(f"No seed below {SEARCHED_SEEDS} detects it.")


def test_a_failure_is_minimised(laboratory: Laboratory) -> None:
    with VARIANTS["receipt before purge"]():
        failed = next(found for seed in range(SEARCHED_SEEDS) if (found := laboratory.run(seed)).violation is not None)
        smallest = shrink(laboratory, failed)
    assert len(smallest.actions) < len(failed.actions)
    assert any(action.kind in ("erase", "approve") for action in smallest.actions)
    assert f"seed {failed.seed}: receipt before purge" in describe(smallest, trace=False)
