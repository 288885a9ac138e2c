"""Simulated histories hold all properties, and the simulator detects broken variants of the product."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark import ParameterSet

from tests.simulation import checker, final_checks, observed_state, quality_checks, quarantine_checks, register_checks
from tests.simulation.actions import KILL_POINTS, MODELS, PEOPLE, Action
from tests.simulation.broken import VARIANTS
from tests.simulation.history import Laboratory
from tests.simulation.simulate import describe, shrink

CHECKS = (checker, final_checks, observed_state, quality_checks, quarantine_checks, register_checks)
SEEDS = 200
CHUNKS = 12
"""Number of tests that share the seeds."""
KILL_STEPS = 220
"""Steps of a worker at which it is killed, from the request to some work after the receipt."""
SEARCHED_SEEDS = 60
"""Ordinary seeds, from 0 on, among which a broken variant must fail."""
EXPECTED: dict[str, str | tuple[str, ...]] = {
    "lease without fencing": "job ended twice",
    "message before commit": "message before commit",
    "receipt before purge": "receipt before purge",
    "outdated snapshot": "promoted with erased data",
    "restore without replay": ("erased ", "removal lost", "correction lost", "request lost"),
    "jobs before the replay": "trained before the replay",
    "replay without the journal": ("removal lost", "correction lost"),
    "erasure without the journal": ("receipt before purge", "erased data left"),
    "rejection without quarantine": "not quarantined",
    "windows before the version": "scored twice",
    "accept without examples": "decision lost",
    "choice without a second look": "removed example named",
}


RESTORED = [
    Action(0.1, "api-1", "add", 0, MODELS[0], size=8),
    Action(1.0, "api-1", "adapt", 0, MODELS[0]),
    Action(15.0, "operator", "backup"),
    Action(16.0, "api-1", "remove", 1, MODELS[0], size=2),
    Action(18.0, "api-1", "correct", 4, MODELS[0]),
    Action(40.0, "operator", "restore"),
]
WAITING = [*RESTORED[:2], Action(14.9, "api-1", "add", 0, MODELS[0], size=2), *RESTORED[2:]]
"""The backup has changes that no version reflects yet."""
CORRECTED = [
    *RESTORED[:2],
    Action(15.0, "api-1", "correct", 1, MODELS[0]),
    *(Action(25.0, "api-1", "erase", person, MODELS[0]) for person in range(len(PEOPLE))),
]
CHOSEN = [
    *RESTORED[:2],
    Action(15.0, "api-1", "add_pending", 0, MODELS[0], size=4),
    Action(30.0, "api-1", "choose", 0, MODELS[0]),
    Action(31.0, "api-2", "remove_pending", 0, MODELS[0], size=2),
]
ACCEPTED = [
    *RESTORED[:2],
    Action(9.49, "api-1", "add_bad", 62248, MODELS[0], size=2),
    Action(9.99, "api-2", "adapt", 57300, MODELS[0]),
    Action(27.93, "api-2", "accept", 9954, MODELS[0]),
]
HISTORIES = {
    "accept without examples": ACCEPTED,
    "choice without a second look": CHOSEN,
    "jobs before the replay": WAITING,
    "replay without the journal": RESTORED,
    "erasure without the journal": CORRECTED,
}
"""For variants that few random histories detect."""


def alone(values: Iterable[object]) -> list[ParameterSet]:
    """Cases that different processes can run."""
    return [pytest.param(value, marks=pytest.mark.xdist_group(f"simulation {value}")) for value in values]


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with Laboratory() as found:
        yield found


@pytest.mark.parametrize("chunk", alone(range(CHUNKS)))
def test_no_history_violates_a_property(laboratory: Laboratory, chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        result = laboratory.run(seed)
        if result.violation is not None:
            pytest.fail(describe(shrink(laboratory, result), trace=True))


def erasure_with_kills(step: int) -> list[Action]:
    """A person who is in two models is erased, and both workers are killed at the same step of their work."""
    start = [Action(0.1 + i / 10, "api-1", "add", 0, model, size=8) for i, model in enumerate(MODELS)]
    start += [Action(0.4 + i / 10, "api-1", "adapt", 0, model) for i, model in enumerate(MODELS)]
    kills = [Action(30.0, "operator", "kill", value=worker, size=step) for worker in ("worker-1", "worker-2")]
    # accidents end with the last action, so that one is left until the erasure has ended
    return [*start, *kills, Action(30.1, "api-1", "erase", 0), Action(150.0, "api-2", "resume", 0, MODELS[0])]


@pytest.mark.grid(20)
@pytest.mark.parametrize("step", alone(range(KILL_STEPS)))
def test_workers_can_be_killed_at_every_step_of_an_erasure(laboratory: Laboratory, step: int) -> None:
    """The checker looks after every commit: no receipt without its leaf, no duplicates, all heads consistent."""
    result = laboratory.run("kills", erasure_with_kills(step))
    if result.violation is not None:
        pytest.fail(describe(result, trace=True))
    assert result.outcomes["receipts"] == 1
    assert any("killed at" in line for line in result.trace)


def kill_at(at: float, point: str) -> Action:
    return Action(at, "operator", "kill_at", KILL_POINTS.index(point))


BEGUN = [*RESTORED[:2], Action(20.0, "operator", "backup")]
CORRECTION = [kill_at(24.9, "file written"), Action(25.0, "api-1", "correct", 1, MODELS[0])]
ADAPTATION = [
    Action(24.0, "api-1", "add", 12, MODELS[0], size=4),
    kill_at(24.5, "file half written"),
    Action(25.0, "api-1", "adapt", 0, MODELS[0]),
]
UNFINISHED_FILES = {
    "correction": [*BEGUN, *CORRECTION],
    "correction lost in a restore": [*BEGUN, *CORRECTION, Action(25.3, "operator", "restore")],
    "weights": [*BEGUN, *ADAPTATION],
    "weights lost in a restore": [*BEGUN, *ADAPTATION, Action(36.0, "operator", "restore")],
}


@pytest.mark.parametrize("name", alone(UNFINISHED_FILES))
def test_an_erasure_deletes_what_a_killed_process_wrote_of_a_file(laboratory: Laboratory, name: str) -> None:
    """The name of the temporary file is not recorded anywhere, and after a restore not even that of the file."""
    erasures = [Action(80.0, "api-1", "erase", person, MODELS[0]) for person in range(len(PEOPLE))]
    result = laboratory.run(1, [*UNFINISHED_FILES[name], *erasures])
    assert result.violation is None, describe(result, trace=True)
    assert any("killed at file" in line for line in result.trace)
    assert result.outcomes["receipts"] == len(PEOPLE)


def test_an_erasure_ends_if_only_examples_without_a_label_arrive_meanwhile(laboratory: Laboratory) -> None:
    """They are hidden, and the changes since the person's examples were removed leave nothing to learn."""
    actions = [
        *RESTORED[:1],
        Action(0.4, "api-1", "adapt", 0, MODELS[0]),
        Action(25.12, "api-1", "erase", 53899, MODELS[1]),
        Action(26.32, "api-1", "add_pending", 56029, MODELS[0], size=4),
        Action(31.71, "api-1", "label", 50481, MODELS[0], size=2),
    ]
    result = laboratory.run(7791, actions)
    assert result.violation is None, describe(result, trace=True)
    assert result.outcomes["receipts"] == 1


@pytest.mark.parametrize("kind", ["correct", "remove"])
def test_a_restore_repeats_changes_of_examples_that_a_refused_request_had_restricted(
    laboratory: Laboratory, kind: str
) -> None:
    """At the time of the backup the request is in progress, and its examples are out of force."""
    actions = [
        *RESTORED[:2],
        Action(7.8, "api-2", "erase", 0, MODELS[0]),
        Action(8.9, "operator", "backup"),
        Action(13.0, "api-1", "refuse", 0, MODELS[0]),
        *(Action(34.0 + i, "api-2", kind, i, MODELS[0], size=1) for i in range(8)),
        Action(70.0, "operator", "restore"),
    ]
    result = laboratory.run(1396, actions)
    assert result.violation is None, describe(result, trace=True)
    assert (result.outcomes["refuse: acknowledged"], result.outcomes["replay: acknowledged"] > 0) == (1, True)
    assert result.outcomes[f"{kind}: acknowledged"] > 3


def test_accepted_examples_do_not_count_against_later_ones_after_a_rollback(laboratory: Laboratory) -> None:
    """A bad batch is accepted, and while the model is adapted to it, somebody promotes the version before it."""
    actions = [
        *ACCEPTED,
        Action(30.03, "api-1", "promote", 29365, MODELS[0]),
        Action(37.11, "api-2", "add", 60870, MODELS[0], size=3),
        Action(44.51, "api-1", "resume", 0, MODELS[0]),
    ]
    result = laboratory.run(3972, actions)
    assert result.violation is None, describe(result, trace=True)
    acknowledged = ("accept", "promote", "resume")
    assert [result.outcomes[f"{kind}: acknowledged"] for kind in acknowledged] == [1, 1, 1]
    assert (result.outcomes["versions rejected"], result.outcomes["examples in quarantine"]) == (0, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_first_version_can_be_rejected_because_of_one_that_was_promoted_meanwhile(
    laboratory: Laboratory, seed: int
) -> None:
    """Two jobs train the first version, and the one that knows a bad batch ends last."""
    actions = [
        Action(0.1, "api-1", "add", 0, MODELS[0], size=8),
        Action(0.2, "api-1", "add", 12, MODELS[0], size=4),
        Action(1.0, "api-1", "retrain", 0, MODELS[0]),
        Action(2.0, "api-1", "add_bad", 39110, MODELS[0], size=3),
        Action(2.5, "api-1", "adapt", 0, MODELS[0]),
    ]
    result = laboratory.run(seed, actions)
    assert result.violation is None, describe(result, trace=True)
    assert result.outcomes["versions rejected"] == 1


def test_the_same_seed_gives_the_same_history(laboratory: Laboratory) -> None:
    for seed in (1, 2, 3):
        first, second = laboratory.run(seed), laboratory.run(seed)
        assert first.trace == second.trace
        assert first.coverage == second.coverage
    assert laboratory.run(1).trace != laboratory.run(2).trace


@pytest.mark.parametrize("variant", alone(VARIANTS))
def test_a_broken_variant_is_detected(laboratory: Laboratory, variant: str) -> None:
    with VARIANTS[variant]():
        for seed in range(SEARCHED_SEEDS):
            replays = variant != "restore without replay"
            violation = laboratory.run(seed, HISTORIES.get(variant), replays).violation
            if violation is not None and violation.kind.startswith(EXPECTED[variant]):
                return
    pytest.fail(f"None of {SEARCHED_SEEDS} seeds detects it.")


@pytest.mark.parametrize("module", CHECKS, ids=lambda module: module.__name__)
def test_the_checker_uses_nothing_of_the_product(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not {name.partition(".")[0] for name in imported} & {"amend", "core", "migrations", "service", "worker"}


def test_a_failure_is_minimised(laboratory: Laboratory) -> None:
    variant = "receipt before purge"
    with VARIANTS[variant]():
        results = (laboratory.run(seed) for seed in range(SEARCHED_SEEDS))
        failed = next(found for found in results if found.violation is not None)
        smallest = shrink(laboratory, failed)
    assert len(smallest.actions) < len(failed.actions)
    assert any(action.kind in ("erase", "approve") for action in smallest.actions)
    assert f"seed {failed.seed}: receipt before purge" in describe(smallest, trace=False)
