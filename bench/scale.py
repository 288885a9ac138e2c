"""The cost of an adaptation as the past grows: it reads the memory and the changes, never the past.

Each size runs in a process of its own, so that its peak memory can be told. Rows are drawn anew on every pass.
"""

from __future__ import annotations

import json as json_module
import resource
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from core.kprior import AddData, Examples, MemoryPolicy, RemoveData, Task, adapt, certify, train
from core.kprior.model.spec import Spec

FEATURES = 99
CHUNK = 20_000
CHANGES = 500
"""The number of added, and of removed, rows."""
REFIT_ROWS = 1_000_000
POLICY = MemoryPolicy(cap=200)
"""The same memory at every size."""
SPEC: Spec = {
    "input": {"kind": "vector", "dim": FEATURES},
    "target": {"kind": "binary"},
    "architecture": {"kind": "linear", "degree": 1},
    "regularizer": {"kind": "l2", "delta": 5.0, "penalize_bias": False},
}


@dataclass(frozen=True)
class Size:
    """One size of the past."""

    rows: int
    adapt_seconds: float
    backward_passes: int
    data_passes: int
    memory: int
    relative_bound: float
    train_seconds: float
    peak_mb: float


class Rows:
    """A logistic problem of any size, generated chunk by chunk."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[Examples]:
        for start in range(self.first, self.last, CHUNK):
            yield chunk(start, min(CHUNK, self.last - start))


class Retained:
    """The past without the removed rows and with the added ones."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Examples]:
        for part in Rows(0, self.rows):
            yield part.take(part.key >= CHANGES)
        yield chunk(10**9, CHANGES)


def chunk(start: int, size: int) -> Examples:
    """Rows start, start + 1, ...; correlated features, noisy labels."""
    random = np.random.default_rng(start)
    x = random.standard_normal((size, FEATURES), dtype=np.float32)
    x[:, 1:] += 0.5 * x[:, :-1]
    truth = np.random.default_rng(12345).standard_normal(FEATURES).astype(np.float32) * 0.3
    y = random.random(size) < 1 / (1 + np.exp(-(x @ truth)))
    return Examples(torch.arange(start, start + size), torch.from_numpy(x), torch.from_numpy(y).float()[:, None])


def measure(rows: int) -> Size:
    """Train on `rows` rows, then adapt to the changes, five times."""
    torch.set_num_threads(1)
    past = Rows(0, rows)
    base = train(SPEC, past, policy=POLICY)
    first = chunk(0, min(CHUNK, rows))
    tasks: list[Task] = [AddData([chunk(10**9, CHANGES)]), RemoveData([first.take(torch.arange(CHANGES))])]
    results = [adapt(base.state, base.memory, tasks, policy=POLICY) for _ in range(5)]
    adapted = results[-1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = certify(adapted.state, adapted.memory, Retained(rows))
    return Size(
        rows,
        statistics.median(r.cost.seconds for r in results),
        adapted.cost.backward_passes,
        adapted.cost.data_passes,
        len(base.memory),
        measured.certificate.relative or 0.0,
        base.cost.seconds,
        peak,
    )


def refit(rows: int) -> float:
    """Seconds that scikit-learn's LogisticRegression takes on the same rows."""
    from sklearn.linear_model import LogisticRegression

    parts = list(Rows(0, rows))
    x = np.concatenate([p.x.numpy() for p in parts])
    y = np.concatenate([p.y[:, 0].numpy() for p in parts])
    model = LogisticRegression(C=1 / 5.0, max_iter=1000)
    start = time.perf_counter()
    model.fit(x, y)
    return time.perf_counter() - start


def run(largest: int, json: Path | None) -> None:
    """Measure all sizes up to the largest, and the corresponding refits."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    sizes = [10**k for k in range(4, 20) if 10**k <= largest]
    context = get_context("spawn")
    out: list[Size] = []
    for rows in sizes:
        console.print(f"{rows:,} rows ...")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            out.append(pool.submit(measure, rows).result())
    reference = min(REFIT_ROWS, largest)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        seconds = pool.submit(refit, reference).result()
    table = Table(title=f"Adapting a GLM (P = {FEATURES + 1}) to {2 * CHANGES:,} changes", title_justify="left")
    for column in (
        "past rows",
        "adapt s",
        "backward passes",
        "passes over the past",
        "memory",
        "relative bound",
        "peak MB",
        "training s",
    ):
        table.add_column(column, justify="right")
    for size in out:
        table.add_row(
            f"{size.rows:,}",
            f"{size.adapt_seconds:.3f}",
            f"{size.backward_passes:,}",
            str(size.data_passes),
            f"{size.memory:,}",
            f"{size.relative_bound:.5f}",
            f"{size.peak_mb:.0f}",
            f"{size.train_seconds:.1f}",
        )
    console.print(table)
    mine = next(s.adapt_seconds for s in out if s.rows == reference)
    console.print(f"scikit-learn's refit on {reference:,} rows: {seconds:.2f} s, {seconds / mine:.0f} times as long")
    if json is not None:
        figures = {"sizes": [asdict(s) for s in out], "refit": {"rows": reference, "seconds": seconds}}
        json.write_text(json_module.dumps(figures, indent=1))
