"""A binary model with some hundred weights, for which curvature is expensive and a warm refit is cheap."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from bench.engine.anchored import TOLERANCE, weights
from bench.engine.clock import timed
from bench.engine.data import Array, Rows, embeddings, mnist, spec_of
from bench.engine.refits import Refitter, distance, exact_optimum, first_tolerance, relative_bound
from bench.engine.tables import Report, Row, Target
from core.kprior import RemoveData, Result, adapt, refine, train

DELTA, REMOVED, ROWS, DIM = 10.0, 100, 59_000, 784
REPEATS = 3
COLUMNS = {
    "change": "removed|",
    "passes": "passes|d",
    "bound": "bound|.1e",
    "distance": "distance|.1e",
    "nothing": "doing\nnothing|.1e",
    "cpu": "adapt + certificate\nCPU s|.3f",
    "visits": "row\nvisits|,d",
    "warm": "warm refit as near\nas ours is certified\nCPU s|.2f",
    "warm_ratio": "times\nfaster|.1f",
    "bounded": "warm refit,\n|gradient|/delta\nwithin 1 %, CPU s|.2f",
    "bounded_ratio": "times\nfaster|.1f",
    "cold": "cold refit\nCPU s|.2f",
    "cold_ratio": "times\nfaster|.1f",
}


def problem(data: Path | None, quick: bool) -> tuple[str, Rows, Array]:
    """Odd or even digits, or generated rows; and a group to remove (one digit, or the end of a feature)."""
    if data is not None and not quick:
        images, _ = mnist(data)
        rows = Rows(images.x[:ROWS], images.y[:ROWS] % 2, 2)
        return "MNIST, odd or even", rows, np.nonzero(images.y[:ROWS] == 8)[0][:REMOVED]
    rows = embeddings(200 if quick else DIM, 2, 3_000 if quick else ROWS, 3.0)
    return "generated rows", rows, np.argsort(-rows.x[:, 0])[:REMOVED]


def compare(base: Result, rows: Rows, name: str) -> Row:
    """The first rows are removed."""
    gone, retained = list(rows[:REMOVED]), rows[REMOVED:]
    times = []
    for _ in range(REPEATS):
        with timed() as spent:
            adapted = adapt(base.state, base.memory, [RemoveData(gone)])
            found = refine(adapted.state, adapted.memory, retained, tolerance=TOLERANCE)
        times.append(spent.cpu)
    cost, bound = adapted.cost + found.cost, found.certificate.relative or float("inf")
    old, new = weights(base.state), weights(found.state)
    truth = exact_optimum(retained, DELTA, True, new)
    row: Row = {
        "change": name,
        "passes": cost.data_passes,
        "bound": bound,
        "distance": distance(new, truth),
        "nothing": distance(old, truth),
        "cpu": statistics.median(times),
        "visits": cost.backward_passes,
    }
    refitter, size = Refitter(retained, DELTA, True), float(np.linalg.norm(truth))
    near, sure = (lambda w: distance(w, truth)), (lambda w: relative_bound(retained, DELTA, w))
    for key, start, precision, wanted in (
        ("warm", old, near, bound),
        ("bounded", old, sure, TOLERANCE),
        ("cold", None, near, bound),
    ):
        refit = refitter.matched(start, wanted, precision, first_tolerance(retained, DELTA, size, wanted))
        row |= {key: refit.cpu, f"{key}_ratio": refit.cpu / row["cpu"], f"{key}_matched": refit.matched}
        row |= {f"{key}_iterations": refit.iterations, f"{key}_precision": refit.precision}
    return row


def run(data: Path | None, quick: bool) -> Report:
    """A hundred random rows, and a hundred of a group."""
    name, rows, group = problem(data, quick)
    dim = rows.x.shape[1]
    title = f"{name}: logistic regression, P = {dim + 1}, N = {len(rows):,}, delta {DELTA:g}; distances are relative"
    report = Report("dense", title, COLUMNS)
    for change, chosen in ((f"{REMOVED} random", np.arange(REMOVED)), (f"{REMOVED} of a group", group)):
        ordered = rows.moved_to_front(chosen)
        with timed() as spent:
            base = train(spec_of(dim, 2, DELTA, True), ordered)
        report.notes.append(f"trained in {spent.cpu:.2f} CPU s, {base.cost.data_passes} passes")
        report.rows.append(compare(base, ordered, change))
    if not quick:
        for row in report.rows:
            ratio = min(row["warm_ratio"], row["bounded_ratio"])
            report.targets.append(Target(f"{row['change']}: times faster than either warm refit", ratio, 5, True))
    return report
