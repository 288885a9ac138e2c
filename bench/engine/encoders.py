"""Models with a frozen encoder: a text head with 20 classes, the import of a pipeline, predictions from raw texts, and
a class that is added to a text head.

The first table measures the engine alone, the second one a running service, in wall-clock seconds and in CPU seconds of
all processes.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench.engine.anchored import TOLERANCE, weights
from bench.engine.clock import timed
from bench.engine.data import Rows, spec_of
from bench.engine.refits import Refitter, distance, first_tolerance, relative_bound
from bench.engine.tables import Report, Row, Target, largest
from bench.engine.texts import FEATURES, Texts, encoded_rows, fit_encoder, read_texts
from core.kprior import AddData, ChangeTarget, Examples, Measurement, RemoveData, Result, Task, adapt, refine, train

DELTA, REMOVED, REPEATS = 1.0, 100, 3
OPTIMUM_TOLERANCE = 3e-4
IMPORT_ROWS, QUICK_ROWS = 100_000, 2_000
SPREAD = 1.5
"""Of correlated columns, as `shop_pipeline` makes them."""
PREDICTED_TEXTS = 256
COLUMNS = {
    "change": "change|",
    "rows": "rows|,d",
    "classes": "classes|d",
    "passes": "passes|d",
    "bound": "bound|.4f",
    "distance": "distance|.1e",
    "cpu": "adapt +\ncertificate\nCPU s|.3f",
    "retrain": "Amend's\nretrain\nCPU s|.2f",
    "warm": "warm refit\nCPU s|.2f",
    "warm_ratio": "times\nfaster|.1f",
    "cold": "cold fit\nCPU s|.2f",
    "cold_ratio": "times\nfaster|.1f",
}
SERVICE_COLUMNS = {
    "step": "through a running service|",
    "rows": "rows|,d",
    "ours": "Amend, s|.3f",
    "cpu": "CPU s|.2f",
    "alternative": "compared with|",
    "theirs": "s|.3f",
    "ratio": "ratio|.2f",
    "their_cpu": "CPU s|.2f",
    "cpu_ratio": "ratio|.2f",
}


def run(data: Path | None, quick: bool) -> Iterator[Report]:
    """Both tables."""
    given = read_texts(data, QUICK_ROWS if quick else None)
    yield heads(encoded_rows(given), given.source, quick)
    yield service(given, quick)


def heads(rows: Rows, source: str, quick: bool) -> Report:
    """Rows removed and a class added, with 20 classes and with 6."""
    title = f"Text head, {FEATURES} features of {source}, delta {DELTA:g}; bounds and distances are relative"
    report = Report("encoders", title, COLUMNS)
    few = Rows(rows.x[rows.y < 6][:2_700], rows.y[rows.y < 6][:2_700], 6)
    for part in (rows, few):
        report.rows += [compare(part, "100 rows removed", removal), compare(part, "a class added", new_class)]
    if not quick:
        removed, added, _, small = report.rows
        report.targets = [
            Target("relative bound", largest(report.rows, "bound"), TOLERANCE),
            Target("20 classes, 100 rows removed, CPU s", removed["cpu"], 0.3),
            Target("20 classes, a class added, CPU s", added["cpu"], 1.0),
            Target("6 classes, a class added, CPU s", small["cpu"], 0.5),
        ]
    return report


def removal(rows: Rows) -> tuple[Result, list[Task], Rows, np.ndarray]:
    """The trained head, the change, the rows afterwards, and the old weights for a refit."""
    base = train(spec_of(FEATURES, rows.classes, DELTA, True), rows)
    return base, [RemoveData(list(rows[:REMOVED]))], rows[REMOVED:], weights(base.state)


def new_class(rows: Rows) -> tuple[Result, list[Task], Rows, np.ndarray]:
    """As `removal`: the rows of the last class come."""
    K = rows.classes
    old, new = (Rows(rows.x[m], rows.y[m], K) for m in (rows.y < K - 1, rows.y == K - 1))
    base = train(spec_of(FEATURES, K - 1, DELTA, True), Rows(old.x, old.y, K - 1))
    added = Examples(torch.arange(len(new)) + len(old), *new._tensors(slice(None)))
    change = ChangeTarget(spec_of(FEATURES, K, DELTA, True)["target"], tuple(float(k) for k in range(K - 1)))
    start = np.zeros((K, FEATURES + 1))
    start[:-1] = weights(base.state)
    after = Rows(np.vstack([old.x, new.x]), np.concatenate([old.y, new.y]), K)
    return base, [AddData([added]), change], after, start


def compare(rows: Rows, change: str, make: Callable[[Rows], tuple[Result, list[Task], Rows, np.ndarray]]) -> Row:
    """One change, with a retrain and with scikit-learn's refits that are as precise."""
    base, tasks, after, start = make(rows)
    times: list[float] = []
    for _ in range(REPEATS):
        with timed() as spent:
            adapted = adapt(base.state, base.memory, tasks)
            found: Measurement = refine(adapted.state, adapted.memory, after, tolerance=TOLERANCE)
        times.append(spent.cpu)
    cpu = statistics.median(times)
    with timed() as spent:
        train(spec_of(FEATURES, after.classes, DELTA, True), after)
    exact = weights(refine(found.state, found.memory, after, tolerance=OPTIMUM_TOLERANCE).state)
    row: Row = {
        "change": change,
        "rows": len(after),
        "classes": after.classes,
        "passes": (adapted.cost + found.cost).data_passes,
        "bound": found.certificate.relative,
        "distance": distance(weights(found.state), exact),
        "cpu": cpu,
        "retrain": spent.cpu,
    }
    tolerance = first_tolerance(after, DELTA, float(np.linalg.norm(exact)), TOLERANCE)
    for key, first in (("warm", start), ("cold", None)):
        refit = Refitter(after, DELTA, True).matched(
            first, TOLERANCE, lambda w: relative_bound(after, DELTA, w), tolerance
        )
        row |= {key: refit.cpu, f"{key}_ratio": refit.cpu / cpu, f"{key}_bound": refit.precision}
    return row


def service(given: Texts, quick: bool) -> Report:
    """The import of a pipeline, predictions from raw texts, and a class added to a text head."""
    from amend import Client
    from bench.turnaround import embedded

    report = Report("encoders-service", "A pipeline and a text encoder in the service", SERVICE_COLUMNS)
    with (
        TemporaryDirectory() as folder,
        embedded(Path(folder)) as stack,
        Client(stack.url, stack.admin_key) as client,
    ):
        report.rows = [
            import_pipeline(client, stack, QUICK_ROWS if quick else IMPORT_ROWS, 0.0),
            import_pipeline(client, stack, QUICK_ROWS if quick else IMPORT_ROWS, SPREAD),
            predict_texts(client, given),
            *add_class(client, encoded_rows(given)),
        ]
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.rows[0]["parts"].items())
    report.notes.append(f"import, CPU s: {parts}")
    if not quick:
        imported, correlated, predicted, _, learnt = report.rows
        report.targets = [
            Target("import of a pipeline / its fit, independent columns", imported["ratio"], 3),
            Target("the same, correlated columns", correlated["ratio"], 3),
            Target("predictions / the encoder alone", predicted["ratio"], 1.3),
            Target("the first examples of a class through REST, s", learnt["ours"], 0.5),
        ]
    return report


def import_pipeline(client: Any, stack: Any, count: int, spread: float) -> Row:
    """A pipeline of imputer, scaler, one-hot encoder and logistic regression, until its version serves."""
    pipeline, frame, y = shop_pipeline(count, spread)
    kind = "correlated" if spread else "independent"
    fits = []
    for _ in range(REPEATS):
        with timed() as spent:
            pipeline.fit(frame, y)
        fits.append(spent)
    theirs, their_cpu = (statistics.median(getattr(fit, name) for fit in fits) for name in ("wall", "cpu"))
    rows = frame.assign(y=y)
    client.wait(
        client.import_model(f"first-{kind}", pipeline, rows.head(1_000), target="y")
    )  # the worker has loaded torch now
    walls, parts = [], []
    for i in range(REPEATS):
        before, start = cpu_seconds(stack), time.perf_counter()
        client.wait(client.import_model(f"{kind}-{i}", pipeline, rows, target="y"))
        walls.append(time.perf_counter() - start)
        after = cpu_seconds(stack)
        parts.append({name: after[name] - before[name] for name in after})
    ours = statistics.median(walls)
    typical = sorted(parts, key=lambda each: sum(each.values()))[len(parts) // 2]
    cpu = sum(typical.values())
    return {
        **{"step": f"import of a pipeline, {kind} columns", "rows": count, "ours": ours, "cpu": cpu, "parts": typical},
        **{"alternative": "its own fit", "theirs": theirs, "ratio": ours / theirs},
        **{"their_cpu": their_cpu, "cpu_ratio": cpu / their_cpu},
    }


def cpu_seconds(stack: Any) -> dict[str, float]:
    """CPU seconds so far of the client (this process), the service and the other processes with their children."""
    import psutil

    groups = {
        "client": [psutil.Process()],
        "service": [psutil.Process(stack.process.pid)],
        "worker and others": [psutil.Process(process.pid) for process in stack.others],
    }
    seconds = {}
    for name, processes in groups.items():
        children = [] if name == "client" else [child for p in processes for child in p.children(recursive=True)]
        times = [process.cpu_times() for process in (*processes, *children)]
        seconds[name] = sum(each.user + each.system for each in times)
    return seconds


def shop_pipeline(count: int, spread: float) -> tuple[Any, Any, np.ndarray]:
    """A pipeline that is not fitted, and rows with missing values.

    The standard deviations of the numbers along the principal directions decrease by that power of ten.
    """
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    random = np.random.default_rng(0)
    values = random.normal(size=(count, 8)) * np.logspace(0, -spread, 8)
    values = values @ np.linalg.qr(random.normal(size=(8, 8)))[0] if spread else values
    numbers = pd.DataFrame(values, columns=[f"n{i}" for i in range(8)])
    frame = numbers.mask(random.random(numbers.shape) < 0.05)
    frame["plan"] = random.choice(["free", "basic", "pro"], count)
    frame["country"] = random.choice([f"c{i}" for i in range(20)], count)
    f = numbers @ random.normal(size=8) + (frame["plan"] == "free")
    y = (random.random(count) < 1 / (1 + np.exp(-f))).astype(int)
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), list(numbers)),
            ("categories", OneHotEncoder(handle_unknown="ignore"), ["plan", "country"]),
        ]
    )
    return make_pipeline(columns, LogisticRegression(max_iter=1_000)), frame, y


def predict_texts(client: Any, given: Texts) -> Row:
    """Predictions for raw texts by an ONNX encoder and a head, and the encoder alone in this process."""
    import onnxruntime
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType

    encoder = fit_encoder(given.texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = to_onnx(encoder, initial_types=[("text", StringTensorType([None]))]).SerializeToString()
    digest = client.upload_encoder(content).digest
    client.create_model(
        "texts",
        {"kind": "text"},
        {"kind": "classes", "values": [f"c{k}" for k in range(int(given.y.max()) + 1)]},
        architecture={"kind": "linear", "encoder": {"kind": "onnx", "digest": digest}},
        policy={"holdout": 0},
    )
    some = list(zip(given.texts[:QUICK_ROWS], given.y[:QUICK_ROWS], strict=True))
    client.add_examples("texts", [{"id": f"t{i}", "x": text, "y": f"c{y}"} for i, (text, y) in enumerate(some)])
    client.wait(client.adapt("texts"))
    batch = given.texts[:PREDICTED_TEXTS]
    session = onnxruntime.InferenceSession(content)
    name = session.get_inputs()[0].name
    alone = middle(lambda: session.run(None, {name: np.array(batch, dtype=object)}))
    ours = middle(lambda: client.predict("texts", batch))
    return {"step": "predictions for texts", "rows": len(batch), "ours": ours} | {
        "alternative": "the encoder alone (onnxruntime)",
        "theirs": alone,
        "ratio": ours / alone,
    }


def add_class(client: Any, rows: Rows) -> list[Row]:
    """A class added to a head with five, and then its first examples; medians of `REPEATS` models."""
    x, y = rows.x[rows.y < 6][:2_700], rows.y[rows.y < 6][:2_700]
    given = [{"id": f"e{i}", "x": x[i].tolist(), "y": f"c{y[i]}"} for i in range(len(y))]
    found = [change_head(client, f"head-{number}", given) for number in range(REPEATS)]
    removal, *steps = (statistics.median(each) for each in zip(*found, strict=True))
    return [
        {"step": step, "rows": len(y), "ours": ours, "alternative": "a removal of 100 rows"}
        | {"theirs": removal, "ratio": ours / removal}
        for step, ours in zip(("a class added to a text head", "its first examples"), steps, strict=True)
    ]


def change_head(client: Any, name: str, given: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Seconds of a removal, of the change that adds the last class, and of the adaptation to its examples."""
    quiet = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}
    old, new = ([row for row in given if (row["y"] == "c5") is last] for last in (False, True))
    target = {"kind": "classes", "values": [f"c{k}" for k in range(5)]}
    regularizer = {"kind": "l2", "delta": DELTA}
    client.create_model(name, {"kind": "vector", "dim": FEATURES}, target, regularizer=regularizer, policy=quiet)
    client.add_examples(name, old)
    client.wait(client.adapt(name))

    def measure(start_job: Callable[[], Any]) -> float:
        start = time.perf_counter()
        client.wait(start_job())
        return time.perf_counter() - start

    removal = measure(lambda: client.remove_examples(name, ids=[row["id"] for row in old[:REMOVED]]).job)
    wider = {"kind": "classes", "values": [f"c{k}" for k in range(6)]}
    change = measure(lambda: client.change_model(name, target=wider).job)
    client.add_examples(name, new)
    learnt = measure(lambda: client.adapt(name))
    newest = client.version(name, 4)
    assert newest.state == "champion", "the gate rejected the first examples of the class"
    assert newest.certificate.relative <= TOLERANCE, "the bound is above the tolerance"
    return removal, change, learnt


def middle(call: Callable[[], object], times: int = 7) -> float:
    """Median wall-clock seconds of a call, after one that is not counted."""
    call()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
