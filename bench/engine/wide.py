"""Wide GLMs: softmax heads over embeddings, and kernel models. Training and removals against scikit-learn at matched
precision.

scikit-learn's precision is |gradient| / delta / |w|, the same figure that ours is certified by.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.engine.anchored import TOLERANCE, weights
from bench.engine.clock import one_thread, timed
from bench.engine.data import Rows, curved_rows, embeddings, independent_rows, mnist, spec_of
from bench.engine.refits import Refitter, distance, first_tolerance, relative_bound
from bench.engine.tables import Report, Row, Target, largest, smallest
from core.kprior import Predictor, RemoveData, Result, adapt, refine, train
from core.kprior.model.spec import KernelArchitecture, Spec

REMOVED = 100
OPTIMUM_TOLERANCE = 3e-4
"""The relative bound of the optimum that distances are measured from."""
COLUMNS = {
    "step": "|",
    "passes": "passes|d",
    "bound": "bound|.4f",
    "distance": "distance|.1e",
    "nothing": "doing nothing:\ndistance|.4f",
    "nothing_bound": "its\nbound|.2f",
    "cpu": "ours\nCPU s|.2f",
    "wall": "wall s|.2f",
    "visits": "row\nvisits|,d",
    "warm": "warm refit\nCPU s|.2f",
    "warm_wall": "wall s|.2f",
    "warm_bound": "its\nbound|.4f",
    "warm_ratio": "times\nfaster|.1f",
    "cold": "cold fit\nCPU s|.2f",
    "cold_wall": "wall s|.2f",
    "cold_bound": "its\nbound|.4f",
    "cold_ratio": "times\nfaster|.1f",
}


def problems(data: Path | None, quick: bool) -> dict[str, tuple[Callable[[], Rows], float]]:
    """Rows, which are generated when needed, and delta."""
    if quick:
        return {"generated 128 x 10": (lambda: embeddings(128, 10, 3_000, 5.0), 10.0)}
    out: dict[str, tuple[Callable[[], Rows], float]] = {}
    if data is not None:
        out["MNIST 784 x 10"] = (lambda: mnist(data)[0], 10.0)
    out["generated 768 x 10"] = (lambda: embeddings(768, 10, 50_000, 5.0), 10.0)
    out["generated 384 x 100"] = (lambda: embeddings(384, 100, 50_000, 6.8), 3.0)
    return out


def run(data: Path | None, quick: bool) -> Iterator[Report]:
    """One table for each problem."""
    for name, (make, delta) in problems(data, quick).items():
        rows = make()
        spec = spec_of(rows.x.shape[1], rows.classes, delta, True)
        report = compare(f"wide {name}", f"{name}: softmax", spec, rows, rows, delta)
        report.targets = [] if quick else targets(report.rows)
        yield report


def independent(quick: bool) -> Report:
    """Independent columns and a small penalty: the case in which a refit converges fastest."""
    dim, classes, count, delta = (128, 10, 3_000, 1.0) if quick else (384, 10, 50_000, 1.0)
    rows = independent_rows(dim, classes, count)
    title = f"{dim} independent columns, {classes} classes: softmax"
    report = compare("wide-independent", title, spec_of(dim, classes, delta, True), rows, rows, delta)
    if not quick:
        training, random, half = report.rows
        report.targets = [
            Target("relative bound", largest(report.rows, "bound"), TOLERANCE),
            Target("training / scikit-learn's", training["cpu"] / training["cold"], 1.2),
            Target("100 random: / warm refit", random["cpu"] / random["warm"], 0.5),
            Target("half a class: / warm refit", half["cpu"] / half["warm"], 1.0),
        ]
    return report


def kernel(quick: bool) -> Report:
    """A kernel model compared with scikit-learn on the same features, without the time to compute these."""
    count, features, dim, delta = (3_000, 128, 5, 1.0) if quick else (100_000, 1_024, 20, 1.0)
    rows = curved_rows(count, dim)
    options: KernelArchitecture = {"kind": "kernel", "kernel": "rbf", "features": features, "lengthscale": dim**0.5}
    spec = spec_of(dim, 2, delta, True, options)
    predictor = Predictor(spec)
    design = np.concatenate([predictor.features(chunk.x)[:, :-1].float().numpy() for chunk in rows])
    title = f"RBF kernel, {features:,} features of {dim} numbers: yes/no"
    report = compare("kernel", title, spec, rows, Rows(design, rows.y, 2), delta)
    if not quick:
        report.targets = [Target("relative bound", largest(report.rows, "bound"), TOLERANCE)]
        for row in report.rows[1:]:
            report.targets.append(Target(f"{row['step']}: times faster than warm", row["warm_ratio"], 1, True))
    return report


def compare(name: str, title: str, spec: Spec, rows: Rows, design: Rows, delta: float) -> Report:
    """Training, then both removals, each from the trained model; `design` is what scikit-learn fits."""
    K = rows.classes
    size = Predictor(spec).size
    title = f"{title}, P = {size:,}, N = {len(rows):,}, delta {delta:g}; relative to the weights"
    report = Report(name, title, COLUMNS)
    with timed() as spent:
        base = train(spec, rows)
    old, found = weights(base.state), base.certificate
    tolerance = first_tolerance(rows, delta, float(np.linalg.norm(old)), TOLERANCE)
    cold = Refitter(design, delta, True).matched(None, TOLERANCE, lambda w: relative_bound(design, delta, w), tolerance)
    report.rows.append(
        {
            "step": "training",
            "passes": base.cost.data_passes,
            "bound": None if found is None else found.relative,
            "cpu": spent.cpu,
            "wall": spent.wall,
            "visits": base.cost.backward_passes,
            "cold": cold.cpu,
            "cold_wall": cold.wall,
            "cold_bound": cold.precision,
            "cold_ratio": cold.cpu / spent.cpu,
            "cold_iterations": cold.iterations,
        }
    )
    random = np.random.default_rng(5).permutation(len(rows))[:REMOVED]
    half = np.nonzero(rows.y == min(8, K - 1))[0][::2]
    for change, chosen in ((f"remove {REMOVED} random", random), (f"remove half a class ({len(half)})", half)):
        report.rows.append(remove(base, rows, design, chosen, change, delta, cold.tolerance))
    return report


def remove(
    base: Result, rows: Rows, design: Rows, chosen: np.ndarray, name: str, delta: float, tolerance: float
) -> Row:
    """Remove rows, with all comparisons. The keys stay those that the base was trained with."""
    stays = np.ones(len(rows), bool)
    stays[chosen] = False
    every = rows.examples()
    gone, kept = (every.take(base.state.memory.key.new_tensor(np.nonzero(m)[0])) for m in (~stays, stays))
    retained, data = Rows(design.x[stays], design.y[stays], design.classes), kept.chunks(10_000)
    with timed() as spent:
        adapted = adapt(base.state, base.memory, [RemoveData([gone])])
        found = refine(adapted.state, adapted.memory, data, tolerance=TOLERANCE)
    exact = refine(found.state, found.memory, data, tolerance=OPTIMUM_TOLERANCE)
    cost, old, new, truth = adapted.cost + found.cost, *map(weights, (base.state, found.state, exact.state))
    row: Row = {
        "step": name,
        "passes": cost.data_passes,
        "bound": found.certificate.relative,
        "distance": distance(new, truth),
        "nothing": distance(old, truth),
        "nothing_bound": relative_bound(retained, delta, old),
        "one_step": distance(weights(adapted.state), truth),
        "cpu": spent.cpu,
        "wall": spent.wall,
        "visits": cost.backward_passes,
    }
    refitter = Refitter(retained, delta, True)
    for key, start in (("warm", old), ("cold", None)):
        refit = refitter.matched(start, TOLERANCE, lambda w: relative_bound(retained, delta, w), tolerance)
        row |= {key: refit.cpu, f"{key}_bound": refit.precision, f"{key}_ratio": refit.cpu / spent.cpu}
        row |= {f"{key}_wall": refit.wall, f"{key}_iterations": refit.iterations, f"{key}_matched": refit.matched}
    return row


def targets(rows: list[Row]) -> list[Target]:
    """The targets of the benchmark."""
    training, random, half = rows
    return [
        Target("relative bound", largest(rows, "bound"), TOLERANCE),
        Target("training / scikit-learn's", training["cpu"] / training["cold"], 1.5),
        Target("100 random: times faster than warm", random["warm_ratio"], 5, True),
        Target("than cold", random["cold_ratio"], 20, True),
        Target("half a class: times faster than warm", half["warm_ratio"], 2, True),
        Target("than cold", half["cold_ratio"], 8, True),
    ]


def million(quick: bool) -> Report:
    """A million weights, in a separate process, so that its peak memory can be measured."""
    dim, K, count = (200, 50, 1_000) if quick else (1_000, 1_000, 5_000)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        rows = pool.submit(measure_million, dim, K, count).result()
    columns = {name: COLUMNS[name] for name in ("step", "passes", "bound", "cpu", "visits")}
    title = f"Generated {dim} x {K}: softmax, P = {K * (dim + 1):,}, N = {count:,}"
    report = Report("million", title, {**columns, "peak": "peak memory\nGB|.2f"}, rows)
    if not quick:
        report.targets = [
            Target("peak memory, GB", largest(rows, "peak"), 4),
            Target("relative bound", largest(rows, "bound"), TOLERANCE),
            Target("bound of a removal", smallest(rows[1:], "bound"), TOLERANCE),
        ]
    return report


def measure_million(dim: int, K: int, count: int) -> list[Row]:
    """Train, and remove a hundred rows."""
    out: list[Row] = []
    with one_thread():
        rows = embeddings(dim, K, count, 8.0)
        with timed() as spent:
            base = train(spec_of(dim, K, 1.0, True), rows)
        bound = None if base.certificate is None else base.certificate.relative
        out.append({"step": "training", "passes": base.cost.data_passes, "bound": bound, "cpu": spent.cpu})
        out[-1] |= {"visits": base.cost.backward_passes, "peak": peak()}
        with timed() as spent:
            adapted = adapt(base.state, base.memory, [RemoveData(list(rows[:REMOVED]))])
            found = refine(adapted.state, adapted.memory, rows[REMOVED:], tolerance=TOLERANCE)
        cost = adapted.cost + found.cost
        out.append({"step": f"remove {REMOVED}", "passes": cost.data_passes, "bound": found.certificate.relative})
        out[-1] |= {"cpu": spent.cpu, "visits": cost.backward_passes, "peak": peak()}
    return out


def peak() -> float:
    """Peak memory of this process in gigabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
