"""Tables from end to end: categories, seen and unseen, missing values, and numbers of any size."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.worker.deployment import DELTA, Deployment, Numbers
from tests.worker.erasure_helpers import erase

# What is tested here is the engine's and the worker's: the database is beside the point.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)

JOBS = ["nurse", "clerk", "baker"]
COLUMNS = [
    {"name": "age", "type": "number"},
    {"name": "job", "type": "category", "values": JOBS},
    {"name": "income", "type": "number"},
    {"name": "member", "type": "boolean"},
    {"name": "since", "type": "date"},
]
Row = dict[str, Any]


def people(n: int) -> tuple[list[Row], Numbers]:
    """Each with an age, an income, a job, and since when they are a member, any of which may be missing."""
    rng = np.random.default_rng(0)
    age, income, job = rng.uniform(20, 70, n), 30_000 + 10_000 * rng.normal(size=n), rng.integers(0, 4, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-(age - 45) / 10 - (job == 1)))).astype(int)
    missing = rng.random((n, 5)) < 0.1
    member, since = rng.random(n) < 0.3, rng.integers(0, 9000, n)
    rows = [
        {
            "age": None if missing[i, 0] else round(float(age[i]), 1),
            "job": None if missing[i, 1] else [*JOBS, "judge"][job[i]],
            "income": None if missing[i, 2] else round(float(income[i])),
            "member": None if missing[i, 3] else bool(member[i]),
            "since": None if missing[i, 4] else str(date(2000, 1, 1) + timedelta(int(since[i]))),
        }
        for i in range(n)
    ]
    return rows, y


def number(value: float | str) -> np.float32:
    """A value as it is stored: of a date the days since 1970."""
    return np.float32((date.fromisoformat(value) - date(1970, 1, 1)).days if isinstance(value, str) else value)


def encoded(rows: list[Row], like: list[Row]) -> Numbers:
    """Numbers as far from the mean of `like` as its deviation says, flags of missing ones, indicators of categories."""
    parts, flags = [], []
    for name in ("age", "income", "member", "since"):
        known = np.array([number(row[name]) for row in like if row[name] is not None], np.float64)
        values = np.array([np.nan if row[name] is None else number(row[name]) for row in rows], np.float64)
        scale = 1.0 if name == "member" else 2.0 ** np.round(np.log2(known.std()))
        middle = 0.0 if name == "member" else np.round(known.mean() / (scale / 4)) * (scale / 4)
        parts.append(np.nan_to_num((values - middle) / scale))
        flags.append(np.isnan(values).astype(float))
    jobs = [row["job"] if row["job"] in JOBS or row["job"] is None else "other" for row in rows]
    indicators = [[float(given == job) for given in jobs] for job in (*JOBS, "other", None)]
    return np.stack([*parts, *flags, *map(np.array, indicators)], 1)


def test_a_table_with_unseen_categories_and_missing_values_is_adapted_within_its_bound(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input={"kind": "table", "columns": COLUMNS}), people(400)

    def send(first: int, last: int) -> None:
        batch = [{"id": f"e{i}", "x": rows[i], "y": int(y[i]), "split": "train"} for i in range(first, last)]
        deployment.post(f"/v1/models/{name}/examples", {"examples": batch})

    send(0, 300)
    deployment.adapted(name)
    with deployment.worker_held():
        send(300, 400)
        deployment.remove(name, range(40))
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["position"]) == ("adapted", 440)
    # numbers are measured by the mean and deviation of the first training
    x = encoded(rows[40:], rows[:300])
    model = LogisticRegression(C=1 / DELTA, solver="newton-cholesky", tol=1e-10).fit(x, y[40:])
    truth = np.concatenate([model.coef_[0], model.intercept_])
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-6
    assert version["certificate"]["relative"] <= 0.01
    assert deployment.datasets_agree(name)


def test_the_units_of_columns_do_not_depend_on_an_erased_outlier(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input={"kind": "table", "columns": COLUMNS}), people(300)
    sent = [{"id": f"e{i}", "x": rows[i], "y": int(y[i]), "split": "train"} for i in range(300)]
    rich = {"id": "rich", "subject": f"rich of {name}", "x": {**rows[0], "income": 1e9}, "y": 1, "split": "train"}
    deployment.post(f"/v1/models/{name}/examples", {"examples": [*sent, rich]})
    deployment.adapted(name)
    before = deployment.state(name).predictor.encoder.scale.tolist()
    [part] = erase(deployment, f"rich of {name}")["models"]
    assert part["method"] == "adapted"
    after = deployment.state(name).predictor.encoder.scale.tolist()
    assert after[1] < before[1] / 100
    model = LogisticRegression(C=1 / DELTA, solver="newton-cholesky", tol=1e-10).fit(encoded(rows, rows), y)
    truth = np.concatenate([model.coef_[0], model.intercept_])
    assert np.linalg.norm(deployment.weights(name) - truth) <= part["certificate"]["bound"] + 1e-6
