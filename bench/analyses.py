"""Analyses compared with brute force in the same run: leave-one-out, cross-validation, previews, labelling, bad labels.

Everything but the preview runs on one thread and is measured in seconds of CPU. The preview is measured by the wall
clock and in seconds of CPU of the service, through the REST API of an embedded deployment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits

from bench.turnaround import MANUAL_POLICY, create_filled_model, embedded, wait_for_job
from core.kprior import Examples, State, choose_batch, cross_validate, leave_one_out, train
from core.kprior.passes.loss import Loss
from core.kprior.passes.partitioned import accumulate

PARTS = ("leave-one-out", "tuning", "labelling", "labels", "preview")
DIM, DELTAS, FOLDS = 64, np.logspace(-2, 3, 13), 10
REMOVED, PREVIEWS = 100, 9
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
"""Of scikit-learn; the first one counts with which all fits are as close to their optima as ours."""
Numbers = NDArray[Any]
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def timed_often(work: Callable[[], T]) -> tuple[float, T]:
    """The median of five runs."""
    runs = [timed(work) for _ in range(5)]
    return statistics.median(seconds for seconds, _ in runs), runs[0][1]


def problem(n: int, seed: int = 0, spread: float = 0.0) -> tuple[Numbers, Numbers]:
    """Inputs and labels of a noisy linear rule.

    With a `spread`, standardised columns are correlated, as in real tables: the standard deviations along the principal
    directions decrease by that power of ten.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIM))
    if spread:
        x = x * np.logspace(0, -spread, DIM) @ np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
        x /= x.std(0)
    x = x.astype(np.float32)
    rule = rng.normal(size=DIM) / 4
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ rule))).astype(np.int64)


def examples(x: Numbers, y: Numbers, classes: int = 2) -> Examples:
    codes = torch.from_numpy(y)
    target = codes.double()[:, None] if classes == 2 else torch.nn.functional.one_hot(codes, classes).double()
    return Examples(torch.arange(len(x)), torch.from_numpy(x), target)


def spec_of(dim: int, delta: float, target: dict[str, Any] | None = None) -> Any:
    given = {"input": {"kind": "vector", "dim": dim}, "target": target or {"kind": "binary"}}
    return given | {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": delta}}


def measure_leave_one_out(table: Table, rows: int) -> None:
    x, y = problem(rows)
    data = examples(x, y).chunks(8_192)
    state = train(spec_of(DIM, 1.0), data).state

    def one_pass() -> Loss:
        return accumulate(data, Loss(state.predictor, state.w, with_hessian=True, careful=True))

    once = statistics.median(timed(one_pass)[0] for _ in range(5))
    ours = statistics.median(timed(lambda: leave_one_out(state, data, check=0))[0] for _ in range(5))
    checked, found = timed(lambda: leave_one_out(state, data))
    add(table, f"leave-one-out, {rows:,} rows, 65 weights", ours, f"one pass {once:.3f} s", ours / once, "<= 2")
    add(table, "  with 10 rows checked exactly", checked, f"error {found.error:.1e}", checked / once, "")


def measure_tuning(table: Table, rows: int, spread: float) -> None:
    x, y = problem(rows, 1, spread)
    data, fold = examples(x, y), np.arange(rows) % FOLDS
    state = train(spec_of(DIM, 1.0), [data]).state
    specs = [spec_of(DIM, float(delta)) for delta in DELTAS]
    ours, found = timed_often(lambda: cross_validate(state, [data], lambda key: key % FOLDS, FOLDS, specs))
    exact = predict_by_refits(x, y, fold, 1e-12, warm=True)
    outputs = np.stack([one.outputs[:, 0].numpy() for one in found])
    precision = error_of(outputs, exact)
    losses = [loss_of(one, y) for one in outputs]
    same = int(np.argmin(losses)) == int(np.argmin([loss_of(one, y) for one in exact]))
    for warm, target in ((True, 4), (False, 8)):
        for tolerance in TOLERANCES:
            seconds, other = timed(lambda t=tolerance, w=warm: predict_by_refits(x, y, fold, t, w))  # type: ignore[misc]
            if error_of(other, exact) <= precision:
                break
        name = f"{'warm' if warm else 'cold'} refits {seconds:.2f} s (tol {tolerance:g})"
        columns = "correlated" if spread else "independent"
        add(
            table, f"13 deltas x 10 folds, {rows:,} rows, {columns} columns", ours, name, seconds / ours, f">= {target}"
        )
    add(table, f"  largest relative error of a logit {precision:.0e}", ours, f"same best delta: {same}", None, "")


def predict_by_refits(x: Numbers, y: Numbers, fold: Numbers, tolerance: float, warm: bool) -> Numbers:
    """(deltas, rows) logits of each row by models that were fitted without its fold."""
    made = np.empty((len(DELTAS), len(y)))
    wide = x.astype(np.float64)
    for k in range(FOLDS):
        mine = fold == k
        inside, outside, labels = wide[mine], wide[~mine], y[~mine]
        model = LogisticRegression(tol=tolerance, max_iter=10_000, warm_start=warm)
        for i, delta in enumerate(DELTAS):
            made[i, mine] = model.set_params(C=1 / delta).fit(outside, labels).decision_function(inside)
    return made


def error_of(outputs: Numbers, exact: Numbers) -> float:
    """The largest relative error of the logits of a delta."""
    return float((np.linalg.norm(outputs - exact, axis=1) / np.linalg.norm(exact, axis=1)).max())


def loss_of(logits: Numbers, y: Numbers) -> float:
    return float(np.logaddexp(0, np.where(y == 1, -logits, logits)).mean())


def measure_labelling(table: Table, rows: int) -> None:
    x, y = problem(20_000, 2)
    state = train(spec_of(DIM, 1.0), [examples(x, y)]).state
    pool = torch.from_numpy(problem(rows, 3)[0])
    ours, _ = timed(lambda: choose_batch(state, pool, 50))
    add(table, f"choose 50 of {rows:,} unlabelled rows", ours, "", ours, "< 1 s")


def measure_labels(table: Table) -> None:
    from cleanlab.rank import get_label_quality_scores

    x, y = load_digits(return_X_y=True)
    x, rng = x / 16, np.random.default_rng(0)
    flipped = rng.random(len(y)) < 0.05
    given = np.where(flipped, (y + rng.integers(1, 10, len(y))) % 10, y)
    target = {"kind": "classes", "values": list(range(10))}
    data = [examples(x, given, 10)]
    state: State = train(spec_of(64, 1.0, target), data).state
    ours, found = timed_often(lambda: leave_one_out(state, data, check=0))
    p = torch.softmax(found.without, 1)[torch.arange(len(given)), torch.from_numpy(given)].numpy()

    def brute() -> Numbers:
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        model = LogisticRegression(C=1.0, max_iter=1_000)
        probabilities = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
        scores: Numbers = get_label_quality_scores(given, probabilities)
        return scores

    theirs, scores = timed_often(brute)
    mine, other = roc_auc_score(flipped, -p), roc_auc_score(flipped, -scores)
    name = f"cleanlab, 5 folds: {theirs:.2f} s, AUC {other:.4f}"
    add(table, f"flipped labels of digits, AUC {mine:.4f}", ours, name, theirs / ours, ">= 10, AUC >= cleanlab's")


def measure_preview(table: Table, rows: int) -> None:
    with TemporaryDirectory() as folder, embedded(Path(folder)) as stack, stack.client() as client:
        create_filled_model(client, "m", rows, policy=MANUAL_POLICY)
        wait_for_job(client, client.post("/v1/models/m/adaptations").raise_for_status().json()["id"])
        seconds, cpu = [], []
        assert stack.process is not None
        service = psutil.Process(stack.process.pid)
        for i in range(PREVIEWS):
            before = sum(service.cpu_times()[:2])
            ids = [f"e{REMOVED * i + j}" for j in range(REMOVED)]
            start = time.perf_counter()
            answer = client.post("/v1/models/m/analyses", json={"kind": "preview", "remove": {"ids": ids}})
            seconds.append(time.perf_counter() - start)
            cpu.append(sum(service.cpu_times()[:2]) - before)
            assert answer.status_code == 200, answer.text
        first, others = seconds[0], statistics.median(seconds[1:])
        job = client.post("/v1/models/m/retrains").raise_for_status().json()["id"]
        start = time.perf_counter()
        wait_for_job(client, job)
        retrain = time.perf_counter() - start
    name = f"retrain job {retrain:.1f} s"
    add(table, f"preview of {REMOVED} removals, {rows:,} rows, REST", others, name, retrain / others, "< 0.2 s")
    add(table, "  CPU time of the service", statistics.median(cpu[1:]), "", None, "")
    add(table, "  the first one, which loads model and holdout", first, "", None, "")


def add(table: Table, what: str, seconds: float, other: str, ratio: float | None, target: str) -> None:
    table.add_row(what, f"{seconds:.3f}", other, "" if ratio is None else f"{ratio:.3g}", target)


def run(only: str, rows: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table(title="Analyses and brute force", title_justify="left")
    for column in ("analysis", "seconds", "compared with", "ratio", "target"):
        table.add_column(column, justify="left" if column in ("analysis", "compared with") else "right")
    with threadpool_limits(1):
        if only in ("", "leave-one-out"):
            measure_leave_one_out(table, min(rows, 100_000))
        if only in ("", "tuning"):
            measure_tuning(table, min(rows, 20_000), 0.0)
            measure_tuning(table, min(rows, 20_000), 1.5)
        if only in ("", "labelling"):
            measure_labelling(table, 10_000)
        if only in ("", "labels"):
            measure_labels(table)
    if only in ("", "preview"):
        measure_preview(table, rows)
    Console(width=150).print(table)
