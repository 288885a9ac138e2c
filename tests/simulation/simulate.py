"""`make simulate SEEDS=1000`: runs histories, and prints their rate, the coverage of points, and minimised failures."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulation.actions import Action
from tests.simulation.broken import VARIANTS
from tests.simulation.history import Laboratory, Result, laboratory


def shrink(laboratory: Laboratory, failed: Result, replays: bool = True) -> Result:
    """The smallest list of actions that still leads to the same kind of violation, by delta debugging."""
    assert failed.violation is not None
    best, size = failed, max(1, len(failed.actions) // 2)
    while True:
        shorter = next(attempts(laboratory, best, size, replays), None)
        if shorter is not None:
            best, size = shorter, min(size, max(1, len(shorter.actions) // 2))
        elif size == 1:
            return best
        else:
            size //= 2


def attempts(laboratory: Laboratory, best: Result, size: int, replays: bool):
    """The results of the same history without some of its actions that fail in the same way."""
    assert best.violation is not None
    for start in range(0, len(best.actions), size):
        actions: list[Action] = best.actions[:start] + best.actions[start + size :]
        result = laboratory.run(best.seed, actions, replays)
        if result.violation is not None and result.violation.kind == best.violation.kind:
            yield result


def describe(result: Result, trace: bool) -> str:
    lines = [f"seed {result.seed}: {result.violation}", *(f"    {action}" for action in result.actions)]
    if trace:
        lines += ["  trace:", *(f"    {line}" for line in result.trace)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make simulate", description="Run simulated histories.")
    parser.add_argument("--seeds", type=int, default=1000, help="Number of histories to run.")
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--trace", action="store_true", help="Print the trace of each failure.")
    parser.add_argument("--broken", choices=VARIANTS, help="Break the product in this way, to see that it is detected.")
    parser.add_argument("--keep", action="store_true", help="Print failures as they are, without minimising them.")
    options = parser.parse_args()
    coverage, kills, outcomes = Counter[str](), Counter[str](), Counter[str]()
    failures, start, simulated = 0, time.process_time(), 0.0
    replays = options.broken != "restore without replay"
    with VARIANTS[options.broken]() if options.broken else nullcontext(), laboratory() as found:
        for seed in range(options.first, options.first + options.seeds):
            result = found.run(seed, replays=replays)
            coverage.update(result.coverage)
            kills.update(result.kills)
            outcomes.update(result.outcomes)
            simulated += result.seconds
            if result.violation is not None:
                failures += 1
                print(describe(result if options.keep else shrink(found, result, replays), options.trace), flush=True)
    seconds = time.process_time() - start
    print(f"{options.seeds} histories, {failures} failed; {options.seeds / seconds:.1f} histories per second;")
    print(f"{simulated / 3600:.1f} simulated hours. Points at which a process could be paused or killed:")
    for name, count in sorted(coverage.items()):
        print(f"    {name:<40} {count:>9} passed {kills[name]:>6} killed")
    print("Outcomes of requests, and what was left at the end:")
    for name, count in sorted(outcomes.items()):
        print(f"    {name:<40} {count}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
