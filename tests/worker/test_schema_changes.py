"""Other columns and classes from end to end: adapted to, certified, and each version predicts with its own input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.worker.deployment import DELTA, Deployment, Numbers
from tests.worker.erasure_helpers import erase

PLANS = ["free", "paid"]
AGE: dict[str, Any] = {"name": "age", "type": "number"}
PLAN: dict[str, Any] = {"name": "plan", "type": "category", "values": PLANS, "other": False}
YEARS: dict[str, Any] = {"name": "years", "type": "number"}
WIDER: dict[str, Any] = {**PLAN, "values": [*PLANS, "trial"]}
VISITS: dict[str, Any] = {"name": "visits", "type": "number"}
Row = dict[str, Any]


def table(*columns: Row) -> Row:
    return {"kind": "table", "columns": list(columns)}


def people(n: int, seed: int = 0) -> tuple[list[Row], Numbers]:
    """Rows of the first input, and whether they left."""
    rng = np.random.default_rng(seed)
    age, plan = rng.uniform(20, 70, n).round(1), rng.integers(0, 2, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-(age - 45) / 10 - plan))).astype(int)
    return [{"age": float(a), "plan": PLANS[p]} for a, p in zip(age, plan, strict=True)], y


def wider(rows: list[Row], seed: int) -> list[Row]:
    """The same people by the columns that there are after the change, with what is new of them."""
    rng = np.random.default_rng(seed)
    plans = [*PLANS, "trial"]
    return [{"years": row["age"], "plan": plans[rng.integers(3)], "visits": float(rng.poisson(3))} for row in rows]


def send(deployment: Deployment, name: str, rows: list[Row], y: Any, first: int = 0, **more: Any) -> None:
    batch = [
        {"id": f"e{first + i}", "x": row, "y": label, "split": "train", **more}
        for i, (row, label) in enumerate(zip(rows, y, strict=True))
    ]
    deployment.post(f"/v1/models/{name}/examples", {"examples": batch})


def read(value: Any) -> float:
    """A number, a boolean or a date as the model stores it."""
    if value is None:
        return np.nan
    days = np.datetime64(value, "D").astype(int) if isinstance(value, str) else value
    return float(np.float32(days))


def encoded(deployment: Deployment, name: str, rows: list[Row], columns: list[Row]) -> Numbers:
    """What a linear model reads of some rows, but for the constant, in the champion's units."""
    encoder = deployment.state(name).predictor.encoder
    numbers = [column["name"] for column in columns if column["type"] != "category"]
    values = np.array([[read(row[n]) for n in numbers] for row in rows], float)
    scaled = (values - encoder.mean.numpy()) / encoder.scale.numpy()
    flags = [
        [float(row[column["name"]] == value) for value in (*column["values"], None)]
        for row in rows
        for column in columns
        if column["type"] == "category"
    ]
    return np.hstack([np.nan_to_num(scaled), np.isnan(values), np.array(flags).reshape(len(rows), -1)])


def fitted(x: Numbers, y: Any, delta: float) -> Numbers:
    model = LogisticRegression(C=1 / delta, solver="newton-cholesky", tol=1e-10).fit(x, y)
    biases = model.intercept_ - (model.intercept_.mean() if len(model.intercept_) > 1 else 0)
    return np.column_stack([model.coef_, biases]).reshape(-1)


def predicted(deployment: Deployment, name: str, x: Row, **more: Any) -> Any:
    return deployment.post(f"/v1/models/{name}/predictions", {"inputs": [x], **more})["outputs"][0]


def test_other_columns_with_examples_removals_and_a_regularizer_in_one_job(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), policy={"certify": "always"}), people(400)
    send(deployment, name, rows[:300], y[:300].tolist())
    assert deployment.adapted(name)["state"] == "succeeded"
    first = predicted(deployment, name, rows[0])
    change = {"input": table({**YEARS, "was": "age"}, WIDER, VISITS), "regularizer": {"kind": "l2", "delta": 3.0}}
    new = wider(rows[300:], 1)
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/changes", change)
        # the champion predicts with its own input until another takes over
        assert predicted(deployment, name, rows[0]) == first
        send(deployment, name, new, y[300:].tolist(), first=300)
        deployment.remove(name, range(40))
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["method"], version["spec"]["input"]) == (
        *("adapted", "kprior"),
        table(YEARS, WIDER, VISITS),
    )
    kept = [{"years": row["age"], "plan": row["plan"], "visits": None} for row in rows[40:300]]
    x = encoded(deployment, name, [*kept, *new], [YEARS, WIDER, VISITS])
    truth = fitted(x, y[40:], 3.0)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert version["certificate"]["relative"] <= 0.01
    assert deployment.datasets_agree(name)
    assert predicted(deployment, name, new[0])["mean"] != predicted(deployment, name, kept[0])["mean"]
    assert predicted(deployment, name, rows[0], version=1) == first
    # both stand for the same rows, whoever read them as what
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    comparison = deployment.get(f"/v1/models/{name}/comparisons")["items"][0]
    assert comparison["within_tolerance"], comparison
    # columns that go, and values that merge
    any_plan = {"name": "plan", "type": "category", "values": ["any"], "other": False}
    merge = {"free": "any", "paid": "any", "trial": "any"}
    less_wide = {"input": table(YEARS, {**any_plan, "merge": merge}), "drop_columns": ["visits"]}
    deployment.post(f"/v1/models/{name}/changes", less_wide)
    deployment.settled(name)
    version = deployment.champion(name)
    less = [{"years": row["years"], "plan": "any"} for row in [*kept, *new]]
    truth = fitted(encoded(deployment, name, less, [YEARS, any_plan]), y[40:], 3.0)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert (version["method"], version["certificate"]["relative"] <= 0.01) == ("kprior", True)
    assert deployment.datasets_agree(name)


def test_yes_and_no_become_classes_and_one_more(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), policy={"certify": "always"}), people(400)
    names = np.array(["stayed", "left"])[y].tolist()
    send(deployment, name, rows[:300], y[:300].tolist())
    deployment.adapted(name)
    target = {"kind": "classes", "values": ["left", "paused", "stayed"]}
    names[300::3] = ["paused"] * len(names[300::3])
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/changes", {"target": {**target, "merge": {"0": "stayed", "1": "left"}}})
        send(deployment, name, rows[300:], names[300:], first=300)
        deployment.remove(name, range(40))
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["method"], version["spec"]["target"]) == ("kprior", target)
    truth = fitted(encoded(deployment, name, rows[40:], [AGE, PLAN]), names[40:], DELTA)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert version["certificate"]["relative"] <= 0.01
    assert set(predicted(deployment, name, rows[0])["probabilities"]) == set(target["values"])
    assert "probabilities" not in predicted(deployment, name, rows[0], version=1)


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_booleans_and_dates_come_with_a_change(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), policy={"certify": "always"}), people(400)
    send(deployment, name, rows[:300], y[:300].tolist())
    deployment.adapted(name)
    member, since = {"name": "member", "type": "boolean"}, {"name": "since", "type": "date"}
    columns = [since, AGE, PLAN, member]
    new = [
        {**row, "member": None if i % 5 == 0 else bool(i % 2), "since": f"2024-{1 + i % 12:02}-{1 + i % 28:02}"}
        for i, row in enumerate(rows[300:])
    ]
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/changes", {"input": table(since, AGE, PLAN, {**member, "default": True})})
        send(deployment, name, new, y[300:].tolist(), first=300)
    deployment.settled(name)
    version = deployment.champion(name)
    past = [{**row, "member": True, "since": None} for row in rows[:300]]
    truth = fitted(encoded(deployment, name, [*past, *new], columns), y, DELTA)
    assert version["method"] == "kprior"
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert version["certificate"]["relative"] <= 0.01


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_the_unit_of_a_column_added_without_values_is_measured_with_the_first_ones(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), policy={"certify": "always"}), people(400)
    send(deployment, name, rows[:300], y[:300].tolist())
    deployment.adapted(name)
    income = {"name": "income", "type": "number"}
    deployment.post(f"/v1/models/{name}/changes", {"input": table(AGE, PLAN, income)})
    deployment.settled(name)
    assert deployment.state(name).predictor.encoder.scale.tolist()[1] == 1
    pay = 40_000 + 9_000 * y + np.random.default_rng(3).normal(0, 9_000, 400).round()
    new = [{**row, "income": None if i < 320 else float(pay[i])} for i, row in enumerate(rows)]
    send(deployment, name, new[300:320], y[300:320].tolist(), first=300)
    deployment.adapted(name)
    assert deployment.state(name).predictor.encoder.scale.tolist()[1] == 1
    send(deployment, name, new[320:], y[320:].tolist(), first=320)
    deployment.adapted(name)
    version = deployment.champion(name)
    assert (version["version"], version["method"]) == (4, "kprior")
    assert deployment.state(name).predictor.encoder.scale.tolist()[1] == 8192
    truth = fitted(encoded(deployment, name, new, [AGE, PLAN, income]), y, DELTA)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert version["certificate"]["relative"] <= 0.01
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    assert deployment.get(f"/v1/models/{name}/comparisons")["items"][0]["within_tolerance"]


@pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)
def test_a_column_whose_unit_was_missed_is_measured_by_the_next_retrain(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN)), people(400)
    send(deployment, name, rows[:300], y[:300].tolist())
    deployment.adapted(name)
    income = {"name": "income", "type": "number"}
    deployment.post(f"/v1/models/{name}/changes", {"input": table(AGE, PLAN, income)})
    deployment.settled(name)
    new = [{**row, "income": 40_000.0 + 20_000 * left + i} for i, (row, left) in enumerate(zip(rows, y, strict=True))]
    # of a single value nobody can tell how far the others will be from it
    send(deployment, name, new[300:301], y[300:301].tolist(), first=300)
    deployment.adapted(name)
    assert deployment.state(name).predictor.encoder.scale.tolist()[1] == 1
    send(deployment, name, new[301:], y[301:].tolist(), first=301)
    deployment.ended(deployment.post(f"/v1/models/{name}/retrains")["id"])
    deployment.settled(name)
    assert deployment.champion(name)["kind"] == "trained"
    assert deployment.state(name).predictor.encoder.scale.tolist()[1] == 8192


@pytest.mark.both_databases
def test_a_dropped_column_returns_and_the_model_is_what_a_fit_of_all_columns_gives(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), policy={"certify": "always"}), people(400)
    send(deployment, name, rows[:300], y[:300].tolist())
    deployment.adapted(name)

    def change(**columns: Any) -> None:
        deployment.post(f"/v1/models/{name}/changes", columns)
        deployment.settled(name)

    def is_fitted(expected: list[Row], labels: Any, columns: list[Row]) -> bool:
        truth = fitted(encoded(deployment, name, expected, columns), labels, DELTA)
        certificate = deployment.champion(name)["certificate"]
        assert certificate["relative"] <= 0.01
        return bool(np.linalg.norm(deployment.weights(name) - truth) <= certificate["bound"] + 1e-5)

    change(drop_columns=["age"])
    assert is_fitted([{"plan": row["plan"]} for row in rows[:300]], y[:300], [PLAN])
    send(deployment, name, [{"plan": row["plan"]} for row in rows[300:350]], y[300:350].tolist(), first=300)
    deployment.adapted(name)
    change(add_columns=[AGE])
    version = deployment.champion(name)
    assert version["method"] == "retrain"  # the sums of the version without the column do not contain its values
    lacking = [*rows[:300], *({**row, "age": None} for row in rows[300:350])]
    assert is_fitted(lacking, y[:350], [AGE, PLAN])
    assert deployment.datasets_agree(name)
    # and it goes on from there
    send(deployment, name, rows[350:], y[350:].tolist(), first=350)
    deployment.remove(name, range(20))
    deployment.settled(name)
    assert deployment.champion(name)["method"] == "kprior"
    assert is_fitted([*lacking, *rows[350:]][20:], y[20:], [AGE, PLAN])
    assert deployment.datasets_agree(name)


def test_a_column_that_is_dropped_and_restored_before_a_job_costs_nothing(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(PLAN, AGE), policy={"certify": "always"}), people(300)
    send(deployment, name, rows[:250], y[:250].tolist())
    deployment.adapted(name)
    with deployment.worker_held():
        deployment.post(f"/v1/models/{name}/changes", {"drop_columns": ["age"]})
        send(deployment, name, [{"plan": row["plan"]} for row in rows[250:]], y[250:].tolist(), first=250)
        deployment.post(f"/v1/models/{name}/changes", {"add_columns": [AGE]})
    deployment.settled(name)
    version = deployment.champion(name)
    assert (version["kind"], version["method"]) == ("adapted", "kprior")
    lacking = [*rows[:250], *({**row, "age": None} for row in rows[250:])]
    truth = fitted(encoded(deployment, name, lacking, [AGE, PLAN]), y, DELTA)
    assert np.linalg.norm(deployment.weights(name) - truth) <= version["certificate"]["bound"] + 1e-5
    assert deployment.datasets_agree(name)


@pytest.mark.both_databases
def test_adding_an_unseen_value_recovers_its_history(deployment: Deployment) -> None:
    open_plan = {**PLAN, "other": True}
    policy = {"certify": "always", "holdout": 0}
    name, (rows, y) = deployment.new_model(input=table(AGE, open_plan), policy=policy), people(400)
    for i, row in enumerate(rows):
        row["plan"] = ("trial", "gold", row["plan"], row["plan"])[i % 4]
    person = f"person of {name}"
    send(deployment, name, rows[:20], y[:20].tolist(), subject=person)
    send(deployment, name, rows[20:300], y[20:300].tolist(), first=20)
    recorded = {"inputs": rows[300:350], "ids": [f"e{i}" for i in range(300, 350)], "record": True}
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/predictions", recorded)

    def is_fitted(first: int, last: int, *values: str) -> bool:
        """Whether the champion is scikit-learn's fit with an indicator for each value, for `other` and for null."""
        numbers = encoded(deployment, name, rows[first:last], [AGE])
        plans = [row["plan"] for row in rows[first:last]]
        flags = [[*(plan == value for value in values), plan not in values, False] for plan in plans]
        truth = fitted(np.hstack([numbers, flags]), y[first:last], DELTA)
        certificate = deployment.champion(name)["certificate"]
        assert certificate["relative"] <= 0.01
        return bool(np.linalg.norm(deployment.weights(name) - truth) <= certificate["bound"] + 1e-5)

    def change(column: Row) -> str:
        deployment.post(f"/v1/models/{name}/changes", {"input": table(AGE, column)})
        deployment.settled(name)
        return str(deployment.champion(name)["method"])

    assert is_fitted(0, 300, *PLANS)
    assert change({**open_plan, "values": [*PLANS, "never sent"]}) == "kprior"  # nothing to recover
    merged = {**open_plan, "values": ["trial", *PLANS], "merge": {"never sent": "free"}}
    assert change(merged) == "retrain"  # the sums of the version before count the value as unseen
    assert is_fitted(0, 300, "trial", *PLANS)
    assert deployment.datasets_agree(name)
    labels = [{"id": f"e{i}", "y": int(y[i])} for i in range(300, 350)]
    deployment.post(f"/v1/models/{name}/labels", {"labels": labels})
    send(deployment, name, rows[350:], y[350:].tolist(), first=350)
    deployment.adapted(name)
    assert deployment.champion(name)["method"] == "kprior"
    assert is_fitted(0, 400, "trial", *PLANS)
    drift = {column["name"]: column for column in deployment.get(f"/v1/models/{name}/drift")["columns"]}
    assert drift["plan"]["unseen"] == pytest.approx(0.25, abs=0.05)  # gold
    [part] = erase(deployment, person)["models"]
    assert part["certificate"]["bound"] is not None
    assert is_fitted(20, 400, "trial", *PLANS)


def test_a_person_from_before_the_change_is_erased(deployment: Deployment) -> None:
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN)), people(300)
    person = f"person of {name}"
    send(deployment, name, rows[:20], y[:20].tolist(), subject=person)
    send(deployment, name, rows[20:], y[20:].tolist(), first=20)
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/changes", {"input": table({**YEARS, "was": "age"}, WIDER, VISITS)})
    deployment.settled(name)
    [part] = erase(deployment, person)["models"]
    kept = [{"years": row["age"], "plan": row["plan"], "visits": None} for row in rows[20:]]
    truth = fitted(encoded(deployment, name, kept, [YEARS, WIDER, VISITS]), y[20:], DELTA)
    assert np.linalg.norm(deployment.weights(name) - truth) <= part["certificate"]["bound"] + 1e-5


def test_a_network_follows_other_columns(deployment: Deployment) -> None:
    network = {"kind": "mlp", "hidden": [8]}
    name, (rows, y) = deployment.new_model(input=table(AGE, PLAN), architecture=network), people(400)
    send(deployment, name, rows, y.tolist())
    deployment.adapted(name)
    deployment.post(f"/v1/models/{name}/changes", {"input": table({**YEARS, "was": "age"}, WIDER, VISITS)})
    [job, *_] = deployment.settled(name)
    assert job["state"] == "succeeded", job
    row = {"years": rows[0]["age"], "plan": rows[0]["plan"], "visits": None}
    assert deployment.champion(name)["spec"]["input"] == table(YEARS, WIDER, VISITS)
    assert 0 < predicted(deployment, name, row)["mean"] < 1
