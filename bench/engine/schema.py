"""A new column or class, with a thousand rows that have it: certified, and compared with a refit from the old weights.

Rows are of a table of numbers. The refit is given the features as a design without those that are zero everywhere, and
for weights that are new the best start that is known without a fit: none, and for a class its share among the rows.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from bench.engine.anchored import DEFAULT, TOLERANCE, weights
from bench.engine.clock import timed
from bench.engine.data import CHUNK, Array, Rows
from bench.engine.refits import Refitter, distance, exact_optimum, first_tolerance
from bench.engine.tables import Report, Row, Target, smallest
from core.kprior import AddData, ChangeInput, ChangeTarget, Examples, Measurement, Result, Task, adapt, refine, train
from core.kprior.data.schema_conversion import input_conversion, target_conversion
from core.kprior.model.spec import Spec, TableInput
from core.kprior.model.spec import Target as TargetSpec

ROWS, NEW, COLUMN_COUNT, DELTA = 100_000, 1_000, 20, 1.0
ROUNDS = 5
"""The maximum number of passes of a job."""
REPEATS = 5
COLUMNS = {
    "change": "change|",
    "size": "weights|d",
    "passes": "passes|d",
    "bound": "bound|.1e",
    "distance": "distance|.1e",
    "nothing": "doing\nnothing|.1e",
    "ms": "adapt +\ncertificate\nCPU ms|.0f",
    "warm": "warm refit as near\nas ours is certified\nCPU ms|.0f",
    "warm_distance": "its\ndistance|.1e",
    "warm_ratio": "times\nfaster|.1f",
    "default": "warm refit,\ntol 1e-4\nCPU ms|.0f",
    "default_distance": "its\ndistance|.1e",
    "cold": "cold refit\nCPU ms|.0f",
    "cold_ratio": "times\nfaster|.1f",
}


@dataclass(frozen=True)
class Case:
    """A change of the input or the target: the old model, the added rows, and all rows in the new form."""

    name: str
    spec: Spec
    before: list[Examples]
    tasks: list[Task]
    after: list[Examples]
    labels: Array
    """(n,) classes of all rows after the change."""
    classes: int


def table_of(columns: int) -> TableInput:
    """A table of numbers."""
    return {"kind": "table", "columns": [{"name": f"c{i}", "type": "number"} for i in range(columns)]}


def target_of(classes: int) -> TargetSpec:
    """Binary, or classes by their numbers."""
    return {"kind": "binary"} if classes == 2 else {"kind": "classes", "values": list(range(classes))}


def spec_of(columns: int, classes: int) -> Spec:
    """A linear model."""
    return {
        "input": table_of(columns),
        "target": target_of(classes),
        "architecture": {"kind": "linear"},
        "regularizer": {"kind": "l2", "delta": DELTA, "penalize_bias": False},
    }


def examples_of(x: torch.Tensor, labels: torch.Tensor, classes: int, first: int = 0) -> list[Examples]:
    """Rows in chunks."""
    y = labels[:, None].float() if classes == 2 else torch.nn.functional.one_hot(labels, classes).float()
    return Examples(torch.arange(len(x)) + first, x, y).chunks(CHUNK)


def draw_rows(count: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers that are correlated with their predecessors, as in `logistic_rows`."""
    x = torch.randn(count, columns, generator=generator)
    x[:, 1:] += 0.5 * x[:, :-1].clone()
    return x


def draw_labels(logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A class for each row."""
    return torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0]


def new_column(classes: int, count: int) -> Case:
    """A new column, which is missing in old rows."""
    random, d = torch.Generator().manual_seed(0), COLUMN_COUNT
    truth = torch.randn(d + 1, classes, generator=random) / 2
    x, come = draw_rows(count, d, random), draw_rows(NEW, d + 1, random)
    labels, new = draw_labels(x @ truth[:d], random), draw_labels(come @ truth, random)
    conversion = input_conversion(table_of(d), table_of(d + 1))
    assert conversion is not None
    added = examples_of(come, new, classes, count)
    old = examples_of(torch.from_numpy(conversion(x.numpy())), labels, classes)
    tasks: list[Task] = [AddData(added), ChangeInput(table_of(d + 1), conversion)]
    words = "binary" if classes == 2 else f"{classes} classes"
    before = examples_of(x, labels, classes)
    every = torch.cat([labels, new]).numpy()
    return Case(f"a column, {words}", spec_of(d, classes), before, tasks, [*old, *added], every, classes)


def new_class(classes: int, count: int) -> Case:
    """A class that no old row has; new rows are of every class."""
    random, d = torch.Generator().manual_seed(0), COLUMN_COUNT
    truth = torch.randn(d, classes + 1, generator=random) / 2
    x, come = draw_rows(count, d, random), draw_rows(NEW, d, random)
    labels, new = draw_labels(x @ truth[:, :classes], random), draw_labels(come @ truth, random)
    codes = target_conversion(target_of(classes), target_of(classes + 1))
    assert codes is not None
    added = examples_of(come, new, classes + 1, count)
    tasks: list[Task] = [AddData(added), ChangeTarget(target_of(classes + 1), codes)]
    before, after = examples_of(x, labels, classes), [*examples_of(x, labels, classes + 1), *added]
    name = f"a class, {'binary' if classes == 2 else classes} → {classes + 1}"
    return Case(name, spec_of(d, classes), before, tasks, after, torch.cat([labels, new]).numpy(), classes + 1)


def adapt_and_certify(base: Result, case: Case) -> Measurement:
    """Adapt and certify, as a job does."""
    adapted = adapt(base.state, base.memory, case.tasks)
    if adapted.certificate is not None and adapted.certificate.meets(TOLERANCE):
        return Measurement(adapted.certificate, adapted.state, adapted.memory, None, None, adapted.cost)
    found = refine(adapted.state, adapted.memory, case.after, tolerance=TOLERANCE, rounds=ROUNDS)
    return replace(found, cost=adapted.cost + found.cost)


def compare(case: Case) -> Row:
    """One change, with all comparisons."""
    base, times = train(case.spec, case.before), []
    for _ in range(REPEATS):
        with timed() as spent:
            found = adapt_and_certify(base, case)
        times.append(spent.cpu)
    predictor = found.state.predictor
    phi = np.concatenate([predictor.features(chunk.x).numpy() for chunk in case.after])
    used = np.asarray(phi.any(0))
    design = Rows(phi[:, used][:, :-1].astype(np.float32), case.labels, case.classes)
    new = weights(found.state)[:, used]
    old = old_weights(base, case, used)
    truth = exact_optimum(design, DELTA, False, new)
    bound, ms = cast(float, found.certificate.relative), 1000 * statistics.median(times)
    row: Row = {
        "change": case.name,
        "size": predictor.size,
        "passes": found.cost.data_passes,
        "bound": bound,
        "distance": distance(new, truth),
        "nothing": distance(old, truth),
        "ms": ms,
        "slowest_ms": 1000 * max(times),
    }
    for key, start in (("warm", old), ("cold", None)):
        tolerance = first_tolerance(design, DELTA, float(np.linalg.norm(truth)), 1.0)
        for dtype in (np.float32, np.float64):  # single precision is faster, where it is enough
            refitter = Refitter(design, DELTA, False, dtype)
            refit = refitter.matched(start, bound, lambda w: distance(w, truth), tolerance)
            if refit.matched:
                break
        row |= {key: 1000 * refit.cpu, f"{key}_distance": refit.precision, f"{key}_matched": refit.matched}
        row |= {f"{key}_iterations": refit.iterations, f"{key}_ratio": 1000 * refit.cpu / ms}
    plain = Refitter(design, DELTA, False, np.float32)
    usual = plain.fit(plain.design(), old, DEFAULT, lambda w: distance(w, truth), np.inf)
    return row | {"default": 1000 * usual.cpu, "default_distance": usual.precision}


def old_weights(base: Result, case: Case, used: Array) -> Array:
    """The old model's weights in the form of the new one, as the start of a refit."""
    kept = weights(base.state)
    size = len(used)
    made = np.zeros((1 if case.classes == 2 else case.classes, size))
    if kept.shape[0] < len(made):  # a class came
        log_fraction = math.log(np.mean(case.labels == case.classes - 1))
        made[: case.classes - 1] = np.vstack([-kept / 2, kept / 2]) if len(kept) == 1 else kept
        made[-1, -1] = log_fraction
        made[:, -1] -= made[:, -1].mean()  # a constant that is added to all biases changes nothing
        return made[:, used]
    half = (size - 1) // 2 - 1
    made[:, :half], made[:, -1] = kept[:, :half], kept[:, -1]
    return made[:, used]


def run(quick: bool) -> Report:
    """A column and a class, with an old target of two and of more classes."""
    count = 10_000 if quick else ROWS
    title = (
        f"{count:,} rows of {COLUMN_COUNT} columns; a column or a class comes with {NEW:,} rows; distances are relative"
    )
    report = Report("schema", title, COLUMNS)
    for case in (new_column(2, count), new_column(5, count), new_class(2, count), new_class(4, count)):
        report.rows.append(compare(case))
    if not quick:
        slowest = smallest(report.rows, "warm_ratio")
        report.targets.append(Target("times faster than the warm refit", slowest, 1, True))
    return report
