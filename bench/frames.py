"""Predictions for a whole frame through the Python client, compared with `predict_proba` of scikit-learn's pipeline."""

from __future__ import annotations

import json as json_module
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import psutil
from rich.console import Console
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from amend import Client
from bench.engine.categories import DELTA, frame_of, generate_rows, spec
from bench.engine.tables import Target
from bench.predictions import record_champion
from bench.wire import amend

MAX_RATIO = 3.0


@dataclass(frozen=True)
class Figure:
    """Median seconds of a call, and mean CPU seconds of all processes that take part in it."""

    rows: int
    ours: float
    theirs: float
    our_cpu: float
    their_cpu: float


def fit_pipeline(frame: pd.DataFrame, y: np.ndarray) -> Pipeline:
    numbers = ("numbers", StandardScaler(), ["age", "tickets", "spend"])
    categories = ("categories", OneHotEncoder(handle_unknown="ignore"), ["city", "plan"])
    model = LogisticRegression(C=1 / DELTA, max_iter=1_000)
    return make_pipeline(ColumnTransformer([numbers, categories]), model).fit(frame, y)


def measure_calls(calls: list[Callable[[], object]], service: int, repeats: int) -> Iterator[tuple[float, float]]:
    """Median duration and mean CPU seconds of each call; the calls take turns, and the first turn warms up."""
    processes = psutil.Process(), psutil.Process(service)
    taken: list[list[float]] = [[] for _ in calls]
    used: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for call, times, cpu in zip(calls, taken, used, strict=True):
            start, before = time.perf_counter(), [sum(p.cpu_times()[:2]) for p in processes]
            call()
            if turn:
                times.append(time.perf_counter() - start)
                cpu.append(sum(sum(p.cpu_times()[:2]) for p in processes) - sum(before))
    for times, cpu in zip(taken, used, strict=True):
        yield statistics.median(times), statistics.fmean(cpu)


def measure(rows: int, repeats: int) -> Figure:
    """The same frame for both, with texts as categories; Arrow in both directions."""
    examples = generate_rows(np.random.default_rng(0), rows, 0.0, 0)
    frame, y = frame_of(examples), examples.y[:, 0].numpy()
    theirs = fit_pipeline(frame, y)
    described = spec()
    for column in described["input"]["columns"][3:]:
        column["values"] = [f"{column['name']}{value}" for value in column["values"]]
    with TemporaryDirectory() as folder, amend(Path(folder) / "home") as service:
        service.post("/v1/models", {"name": "frame", **described})
        record_champion(service, "frame", examples.x.numpy(), y)
        with Client(f"http://127.0.0.1:{service.port}", service.key) as client:
            found, expected = client.predict_table("frame", frame).to_pandas()["mean"], theirs.predict_proba(frame)
            assert np.abs(found.to_numpy() - expected[:, 1]).max() < 0.01  # the units of the numbers differ slightly
            calls: list[Callable[[], object]] = [
                lambda: client.predict_table("frame", frame),
                lambda: theirs.predict_proba(frame),
            ]
            (ours, our_cpu), (theirs_taken, their_cpu) = measure_calls(calls, service.process, repeats)
            return Figure(rows, ours, theirs_taken, our_cpu, their_cpu)


def run(rows: int, repeats: int, json: Path | None) -> None:
    """Measure, and print the result and its target."""
    figure = measure(rows, repeats)
    console = Console()
    console.print(f"{rows:,} rows: client {figure.ours:.3f} s, predict_proba {figure.theirs:.3f} s")
    console.print(f"CPU: client and service {figure.our_cpu:.3f} s, predict_proba {figure.their_cpu:.3f} s")
    target = Target("CPU time, client and service / predict_proba", figure.our_cpu / figure.their_cpu, MAX_RATIO)
    console.print(f"{'met' if target.met else 'NOT met'}: {target}", markup=False, highlight=False)
    if json is not None:
        json.write_text(json_module.dumps(asdict(figure)))
