"""GLMs whose Hessian fits in memory: the cost of a change that is certified without a pass, as the past grows.

Rows are laid out so that whatever is retained is a slice of them, and nothing is copied:

    100 to add (a biased group) | 100 to remove | the rest | 100 of a group to remove | 100 or more to add

The base model has all but the first and the last part. Both kinds of change shift the slice by a hundred rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.engine.clock import timed
from bench.engine.data import Array, Rows, logistic_rows, spec_of
from bench.engine.refits import Refitter, distance, exact_optimum, first_tolerance
from bench.engine.tables import Report, Row, Target, largest, smallest
from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import PAPER, REPLAY
from bench.reselection import reselect
from core.kprior import (
    AddData,
    Data,
    MemoryPolicy,
    RemoveData,
    Result,
    Select,
    State,
    Task,
    adapt,
    refine,
    train,
)

DIM, DELTA, CHANGES = 64, 1.0, 100
TOLERANCE = 0.01
DEFAULT = 1e-4
"""scikit-learn's default tolerance; with many rows it accepts the old weights."""
JOBS = 50
REPEATS = 5
CHEAP = 100_000
"""Number of rows up to which the paper's K-prior and replay are run as well; each needs a pass to select its memory."""
COLUMNS = {
    "rows": "rows|,d",
    "change": "change|",
    "passes": "passes|d",
    "free_bound": "bound by\nno pass|.1e",
    "bound": "bound\nin the end|.1e",
    "distance": "distance|.1e",
    "nothing": "doing\nnothing|.1e",
    "ms": "adapt +\ncertificate\nCPU ms|.1f",
    "visits": "row\nvisits|,d",
    "save_load_ms": "save +\nload ms|.1f",
    "warm": "warm refit\nCPU s|.2f",
    "warm_distance": "its\ndistance|.1e",
    "warm_ratio": "times\nfaster|.1f",
    "cold": "cold refit\nCPU s|.2f",
    "cold_ratio": "times\nfaster|.1f",
    "default": "warm refit,\ntol 1e-4\nCPU s|.2f",
    "default_distance": "its\ndistance|.1e",
    "paper": "paper's\nmode|.1e",
    "replay": "replay|.1e",
}


@dataclass(frozen=True)
class Shift:
    """A change as slices of the rows."""

    name: str
    gone: Rows
    come: Rows
    retained: Rows
    stays: Rows
    """The retained rows without the added ones."""

    @property
    def tasks(self) -> list[Task]:
        return [RemoveData(list(self.gone)), AddData(list(self.come))]


def generate_rows(count: int, jobs: int) -> Rows:
    """`count` rows of a base model, with rows to add before and after them."""
    rows = logistic_rows(count + CHANGES * (1 + jobs), DIM)
    x, y = rows.x, rows.y
    base = slice(CHANGES, CHANGES + count)
    # a group: the class and the end of one feature where the model is surest, from the first rows, put last
    few = np.arange(2 * CHANGES, min(CHANGES + count, 200_000) - CHANGES)
    score = np.where(y[few] == 1, x[few, 0], -np.inf)
    chosen, last = few[np.argsort(-score)[:CHANGES]], np.arange(base.stop - CHANGES, base.stop)
    for values in (x, y):
        values[chosen], values[last] = values[last].copy(), values[chosen].copy()
    x[:CHANGES, 0] += 2
    y[:CHANGES] = 0  # rows of another population
    return rows


def shifts(rows: Rows, count: int) -> Iterator[Shift]:
    """The random change, and the biased one."""
    first, last, c = rows[CHANGES : 2 * CHANGES], rows[CHANGES + count : 2 * CHANGES + count], CHANGES
    yield Shift("random", first, last, rows[2 * c : 2 * c + count], rows[2 * c : c + count])
    yield Shift("biased", rows[count : count + c], rows[:c], rows[:count], rows[c:count])


def adapt_and_certify(state: State, result: Result, shift: Shift) -> tuple[Result, float, int]:
    """Adapt, and refine if the bound exceeds the tolerance, as a job does; returns the bound and the passes as well."""
    return adapt_and_refine(state, result, shift.tasks, shift.retained)


def adapt_and_refine(state: State, result: Result, tasks: list[Task], retained: Data) -> tuple[Result, float, int]:
    """The same for any tasks and retained rows."""
    adapted = adapt(state, result.memory, tasks)
    found = adapted.certificate
    if found is not None and found.relative is not None and found.relative <= TOLERANCE:
        return adapted, found.relative, 0
    refined = refine(adapted.state, adapted.memory, retained, tolerance=TOLERANCE)
    done = Result(refined.state, refined.memory, adapted.cost + refined.cost, True, refined.certificate)
    return done, refined.certificate.relative or float("inf"), refined.cost.data_passes


def free_bound(base: Result, shift: Shift) -> float | None:
    """The relative bound before any pass."""
    found = adapt(base.state, base.memory, shift.tasks).certificate
    return None if found is None else found.relative


def weights(state: State) -> Array:
    """(K, D + 1) as a NumPy array."""
    found: Array = state.w.view(state.predictor.family.outputs, -1).double().numpy()
    return found


def compare(base: Result, shift: Shift) -> Row:
    """One change with one number of rows, and all comparisons."""
    times = []
    for _ in range(REPEATS):
        with timed() as spent:
            result, bound, passes = adapt_and_certify(base.state, base, shift)
        times.append(spent.cpu)
    with timed() as files:
        State.from_bytes(result.state.to_bytes())
    old, new = weights(base.state), weights(result.state)
    truth = exact_optimum(shift.retained, DELTA, False, new)
    row: Row = {
        "rows": base.state.count,
        "change": shift.name,
        "passes": passes,
        "free_bound": bound if not passes else free_bound(base, shift),
        "bound": bound,
        "distance": distance(new, truth),
        "nothing": distance(old, truth),
        "ms": 1000 * statistics.median(times),
        "visits": result.cost.backward_passes,
        "memory": len(result.memory),
        "save_load_ms": 1000 * files.cpu,
    }
    refits(row, shift, old, truth)
    if base.state.count <= CHEAP:
        policy = MemoryPolicy(select=Select.CURVATURE)
        chosen = reselect(base.state, shift.stays, policy)
        for name, method in (("paper", PAPER), ("replay", REPLAY)):
            tried = adapt_by(method, chosen.state, chosen.memory, shift.tasks, policy=policy)
            row[name] = distance(weights(tried.state), truth)
    return row


def refits(row: Row, shift: Shift, old: Array, truth: Array) -> None:
    """scikit-learn, to the precision that our certificate states: from the old weights, and from scratch."""
    for name, start in (("warm", old), ("cold", None)):
        tolerance = first_tolerance(shift.retained, DELTA, float(np.linalg.norm(truth)), 1.0)
        for dtype in (np.float32, np.float64):  # single precision is faster, where it is enough
            refitter = Refitter(shift.retained, DELTA, False, dtype)
            found = refitter.matched(start, row["bound"], lambda w: distance(w, truth), tolerance)
            if found.matched or len(shift.retained) > 2_000_000:
                break
        row |= {name: found.cpu, f"{name}_distance": found.precision, f"{name}_matched": found.matched}
        row |= {f"{name}_iterations": found.iterations, f"{name}_ratio": 1000 * found.cpu / row["ms"]}
    plain = Refitter(shift.retained, DELTA, False, np.float32)
    usual = plain.fit(plain.design(), old, DEFAULT, lambda w: distance(w, truth), np.inf)
    row |= {"default": usual.cpu, "default_distance": usual.precision}


def chain(rows: Rows, base: Result, count: int, jobs: int) -> Row:
    """A sequence of random changes, one job each: passes, time per job, largest bound."""
    times, bounds, passes, result = [], [], 0, base
    for job in range(jobs):
        begin = CHANGES * (job + 1)
        gone, come = rows[begin : begin + CHANGES], rows[begin + count : begin + count + CHANGES]
        stays = rows[begin + CHANGES : begin + count]
        shift = Shift("random", gone, come, rows[begin + CHANGES : begin + CHANGES + count], stays)
        with timed() as spent:
            result, bound, more = adapt_and_certify(result.state, result, shift)
        times.append(spent.cpu)
        bounds.append(bound)
        passes += more
    truth = exact_optimum(shift.retained, DELTA, False, weights(result.state))
    return {
        "rows": count,
        "change": f"{jobs} in a row",
        "passes": passes,
        "bound": max(bounds),
        "distance": distance(weights(result.state), truth),
        "nothing": distance(weights(base.state), truth),
        "ms": 1000 * statistics.median(times),
        "slowest_ms": 1000 * max(times),
        "bounds": bounds,
    }


def run(max_rows: int, quick: bool) -> Report:
    """All sizes up to the largest; the chain at a million, or at the largest."""
    sizes = [10**k for k in range(3 if quick else 4, 20) if 10**k <= max_rows]
    chained = min(10**6, sizes[-1])
    jobs = 5 if quick else JOBS
    report = Report(
        "anchored",
        f"Logistic regression, P = {DIM + 1}: {CHANGES} rows removed and {CHANGES} added; distances are relative",
        COLUMNS,
    )
    for count in sizes:
        rows = generate_rows(count, jobs if count == chained else 1)
        with timed() as spent:
            base = train(spec_of(DIM, 2, DELTA, False), rows[CHANGES : CHANGES + count])
        report.notes.append(f"{count:,} rows: trained in {spent.cpu:.2f} CPU s, {base.cost.data_passes} passes")
        report.rows += [compare(base, shift) for shift in shifts(rows, count)]
        if count == chained:
            report.rows.append(chain(rows, base, count, jobs))
    report.targets = targets(report.rows, jobs)
    return report


def targets(rows: list[Row], jobs: int) -> list[Target]:
    """The targets of the benchmark."""
    single = [row for row in rows if "warm" in row]
    random = [row for row in single if row["change"] == "random"]
    million = [row for row in random if row["rows"] == 10**6]
    longest = [row for row in rows if "bounds" in row and row["rows"] == 10**6 and jobs == JOBS]
    slow, fast = largest(random, "ms"), smallest(random, "ms")
    return [
        Target("passes, one change at any N", largest(single, "passes"), 0),
        Target("relative bound", largest(rows, "bound"), TOLERANCE),
        Target("slowest N / fastest N", None if slow is None or not fast or len(random) < 2 else slow / fast, 1.5),
        Target("times faster than the warm refit at 10^6", smallest(million, "warm_ratio"), 30, True),
        Target(f"passes of {JOBS} jobs in a row at 10^6", largest(longest, "passes"), 2),
    ]
