"""Boosted trees: 100 rows removed from the head on their leaves, next to boosting anew.

The rows are generated: 20 numbers, some of them rounded, with interactions that need splits, and a group of 5 % with a
shifted number and a relation of its own. Whatever is retained is a slice of the rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score

from bench.engine.clock import timed
from bench.engine.tables import Report, Row, Target, largest, smallest
from core.kprior import Examples, MemoryPolicy, RemoveData, Result, State, adapt, refine, train
from core.kprior.model.spec import Spec

DIM, TREES, LEAVES, CHANGES = 20, 100, 31, 100
TOLERANCE, EXACT = 0.01, 1e-8
"""The largest acceptable relative bound, and that of the weights that distances are measured from."""
CHUNK_ROWS, TEST_ROWS = 100_000, 50_000
REPEATS = 3
POLICY = MemoryPolicy(0.02, 1_000)
BOOSTING: dict[str, Any] = {
    **{"objective": "binary", "num_leaves": LEAVES, "verbosity": -1, "num_threads": 1},
    **{"deterministic": True, "force_row_wise": True, "seed": 0},
}
SPEC: Spec = {
    "input": {"kind": "vector", "dim": DIM},
    "target": {"kind": "binary"},
    "architecture": {"kind": "trees", "trees": TREES, "leaves": LEAVES},
    "regularizer": {"kind": "l2", "delta": "auto", "penalize_bias": False},
}
COLUMNS = {
    "rows": "rows|,d",
    "change": "100 rows\nremoved|",
    "passes": "passes|d",
    "bound": "bound|.1e",
    "distance": "distance|.1e",
    "nothing": "doing\nnothing|.1e",
    "seconds": "adapt +\ncertificate\nCPU s|.2f",
    "boosting": "LightGBM\nretrain\nCPU s|.1f",
    "ratio": "times\nfaster|.1f",
    "auc": "AUC,\nhead|.4f",
    "booster_auc": "AUC,\nLightGBM|.4f",
    "loss": "loss,\nhead|.4f",
    "booster_loss": "loss,\nLightGBM|.4f",
}


@dataclass(frozen=True)
class Slices:
    """Rows as a `Data`: chunks of slices of two arrays."""

    x: np.ndarray
    y: np.ndarray
    first: int = 0

    def __iter__(self) -> Iterator[Examples]:
        for start in range(0, len(self.x), CHUNK_ROWS):
            x, y = self.x[start : start + CHUNK_ROWS], self.y[start : start + CHUNK_ROWS]
            key = torch.arange(self.first + start, self.first + start + len(x))
            yield Examples(key, torch.from_numpy(x), torch.from_numpy(y[:, None].astype(np.float64)))

    def cut(self, begin: int, end: int) -> Slices:
        """Some of the rows."""
        return Slices(self.x[begin:end], self.y[begin:end], self.first + begin)


def generate_rows(count: int, seed: int) -> Slices:
    """`count` rows, the last 5 % of them in the group."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(count, DIM)).astype(np.float32)
    group = np.arange(count) >= count - count // 20
    x[group, 0] += 1.5
    x[:, 5:10] = np.round(x[:, 5:10] * 2)
    f = 1.2 * np.sin(2 * x[:, 0]) * x[:, 1] + (x[:, 2] > 0.3) * x[:, 3] * 1.5 - 0.8 * np.abs(x[:, 4])
    f += 0.5 * x[:, 5] * (x[:, 6] > 0) + 0.3 * x[:, 10] - 0.2 + 1.2 * group * x[:, 7]
    return Slices(x, (r.random(count) < 1 / (1 + np.exp(-f))).astype(np.int64))


def adapt_and_certify(base: Result, gone: Slices, retained: Slices) -> tuple[Result, float, int]:
    """Remove rows, and refine if the bound exceeds the tolerance, as a job does."""
    adapted = adapt(base.state, base.memory, [RemoveData(gone)], policy=POLICY)
    found = adapted.certificate
    if found is not None and found.meets(TOLERANCE):
        return adapted, found.relative or 0.0, 0
    refined = refine(adapted.state, adapted.memory, retained, tolerance=TOLERANCE, policy=POLICY)
    done = Result(refined.state, refined.memory, refined.cost, True, refined.certificate)
    return done, refined.certificate.relative or float("inf"), refined.cost.data_passes


def predict(state: State, rows: Slices) -> np.ndarray:
    parts = [state.predictor.family.mean(state.predictor.outputs(state.w, chunk.x)) for chunk in rows]
    means: np.ndarray = torch.cat(parts)[:, 0].numpy()
    return means


def measure(rows: Slices, base: Result, change: str, gone: Slices, retained: Slices, test: Slices) -> Row:
    """One removal, and boosting anew on the retained rows."""
    times = []
    for _ in range(REPEATS):
        with timed() as spent:
            result, bound, passes = adapt_and_certify(base, gone, retained)
        times.append(spent.cpu)
    truth = refine(result.state, result.memory, retained, tolerance=EXACT, rounds=6, policy=POLICY).state.w
    size = float(truth.norm())
    with timed() as boosting:
        data = lightgbm.Dataset(retained.x.astype(np.float64), retained.y)
        booster = lightgbm.train(BOOSTING, data, TREES)
    p, q = predict(result.state, test), np.asarray(booster.predict(test.x))
    return {
        "rows": len(rows.x),
        "change": change,
        "passes": passes,
        "bound": bound,
        "distance": float((result.state.w - truth).norm()) / size,
        "nothing": float((base.state.w - truth).norm()) / size,
        "seconds": statistics.median(times),
        "boosting": boosting.cpu,
        "ratio": boosting.cpu / statistics.median(times),
        "auc": roc_auc_score(test.y, p),
        "booster_auc": roc_auc_score(test.y, q),
        "loss": log_loss(test.y, p),
        "booster_loss": log_loss(test.y, q),
    }


def run(max_rows: int, quick: bool) -> Report:
    """All sizes up to the largest."""
    sizes = [3_000] if quick else [size for size in (10**5, 10**6) if size <= max(max_rows, 10**5)]
    title = (
        f"Boosted trees, {TREES} x {LEAVES} leaves, head with {TREES * LEAVES + 1:,} weights; distances are relative"
    )
    report, test = Report("trees", title, COLUMNS), generate_rows(TEST_ROWS, 3)
    for count in sizes:
        rows = generate_rows(count, 1)
        with timed() as spent:
            base = train(SPEC, rows, policy=POLICY)
        delta = float(base.state.regularizer.delta[0])
        report.notes.append(f"{count:,} rows: trained in {spent.cpu:.0f} CPU s, delta {delta:g} chosen")
        ends = {"random": (0, CHANGES), "of the group": (count - CHANGES, count)}
        for change, (begin, end) in ends.items():
            retained = rows.cut(end, count) if begin == 0 else rows.cut(0, begin)
            report.rows.append(measure(rows, base, change, rows.cut(begin, end), retained, test))
    report.targets = targets(report.rows)
    return report


def targets(rows: list[Row]) -> list[Target]:
    """The targets of the benchmark."""
    large = [row for row in rows if row["rows"] >= 10**5]
    worst = [{"gain": row["auc"] - row["booster_auc"]} for row in large]
    return [
        Target("relative bound", largest(large, "bound"), TOLERANCE),
        Target(
            "times faster than LightGBM at 10^6", smallest([r for r in rows if r["rows"] == 10**6], "ratio"), 10, True
        ),
        Target("AUC, compared with LightGBM's", smallest(worst, "gain"), -0.002, True),
    ]
