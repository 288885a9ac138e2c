"""Networks: every task compared with doing nothing, warm descent on all rows, the paper's K-prior, replay and retrains.

There is no truth for a network: two retrains from different seeds differ, and by how much is the floor. A task in which
doing nothing is already there proves nothing, and is marked.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from bench.engine.clock import timed
from bench.engine.descents import Network, Trained, Trainings, cheapest_warm
from bench.engine.network_tasks import Images, NetworkTask, images, network_tasks
from bench.engine.tables import Report, Row, Target
from bench.paper.objective.adaptation import adapt_by
from bench.paper.objective.methods import PAPER, REPLAY
from bench.reselection import reselect
from core.kprior import (
    MemoryPolicy,
    Select,
    State,
    Training,
    adapt,
    membership_auc,
)
from core.kprior.data.random_samples import draw_from

RETAINED_ROWS = 5_000
"""Retained rows that accuracy is measured on."""
SLACK = 0.1
"""Percentage points by which a warm descent may be worse than ours and still count as equally good."""
MAX_STILL_NAMED, MAX_EXTRA_DISAGREEMENT = 5.0, 0.5
LARGE = 20_000
"""Number of rows from which the target is less CPU time than a warm descent."""
TRAINING = {"mlp": Training(max_epochs=40), "lenet5": Training(max_epochs=15), "small": Training()}
COLUMNS = {
    "way": "way|",
    "accuracy": "accuracy|.2f",
    "disagreement": "differs\nfrom Batch|.2f",
    "floor": "floor|.2f",
    "still": "still\nnamed %|.1f",
    "removed_loss": "loss of\nremoved|.3f",
    "unseen_loss": "loss of\nunseen|.3f",
    "auc": "AUC|.3f",
    "kept": "accuracy\non kept|.2f",
    "visits": "row\nvisits|,.0f",
    "passes": "passes|.1f",
    "cpu": "CPU s|.2f",
    "note": "|",
}
MEANS = ("accuracy", "disagreement", "still", "removed_loss", "unseen_loss", "auc", "kept", "visits", "passes", "cpu")


def figures_of(network: Network, task: NetworkTask, data: Images, batch: Network) -> Row:
    """The metrics of a network in one task."""
    test, label = data.test, data.test.y.argmax(1)
    gone = torch.zeros(len(test), dtype=torch.bool) if task.gone is None else label == task.gone
    said, theirs = network.decide(test.x), batch.decide(test.x)
    out: Row = {
        "accuracy": percent(said == label, ~gone),
        "disagreement": percent(said != theirs, ~gone),
        "unseen_loss": float(network.losses(test.take(~gone)).mean()),
    }
    kept = task.retained.take(torch.arange(0, len(task.retained), max(1, len(task.retained) // RETAINED_ROWS)))
    out["kept"] = percent(network.decide(kept.x) == kept.y.argmax(1))
    if task.removed is not None:
        out["removed_loss"] = float(network.losses(task.removed).mean())
        unseen = test.take(gone) if task.gone is not None else test
        out["auc"] = membership_auc(*network, task.removed.chunks(2048), unseen.chunks(2048))
        if task.gone is not None:
            out["still"] = percent(said == task.gone, gone)
        elif task.wrong:
            out["still"] = percent(network.decide(task.removed.x) == task.removed.y.argmax(1))
    return out


def percent(hits: torch.Tensor, among: torch.Tensor | None = None) -> float:
    """The percentage of rows that are hits."""
    return 100 * float((hits if among is None else hits[among]).double().mean())


def ours(task: NetworkTask, base: Trained, data: Images, seed: int) -> tuple[Network, Row, list[int]]:
    """Our adaptation, job after job; its total cost, and the row visits of each job."""
    result, cpu, visits, forward = base.result, 0.0, [], 0
    for tasks, stays, _ in task.steps():
        training = Training(seed=seed)
        with timed() as spent:
            result = adapt(
                result.state,
                result.memory,
                tasks,
                training=training,
                draw=draw_from(stays),
                holdout=data.holdout.chunks(2048),
            )
        cpu += spent.cpu
        visits.append(result.cost.backward_passes)
        forward += result.cost.forward_passes
    audit = None if result.certificate is None else result.certificate.audit
    objection = "" if audit is None else audit.objection
    row = {"visits": sum(visits), "forward": forward, "cpu": cpu, "passes": 0, "objection": objection}
    return Network.of(result.state), row, visits


def by_memory(task: NetworkTask, base: State, seed: int) -> dict[str, tuple[Network, Row]]:
    """The paper's K-prior and replay with 2 % of the retained rows, selected as in the paper."""
    [(tasks, stays, _)] = task.steps()
    policy = MemoryPolicy(select=Select.CURVATURE, balance=True)
    out = {}
    for name, method in (("paper's mode", PAPER), ("replay", REPLAY)):
        with timed() as spent:
            chosen = reselect(base, stays.chunks(10_000), policy, seed)
            training = Training(seed=seed)
            found = adapt_by(method, chosen.state, chosen.memory, tasks, training=training, policy=policy)
        row = {"visits": found.cost.backward_passes, "passes": 1, "cpu": spent.cpu}
        out[name] = (Network.of(found.state), row)
    return out


def compare(task: NetworkTask, data: Images, trainings: Trainings, seed: int, seeds: int) -> list[Row]:
    """One task with one seed: one row for each method."""
    base_key, batch_key = task.keys()
    base = trainings.get(base_key, task.spec, task.base, seed)
    retrains = [
        trainings.get(batch_key, task.new_spec, task.retained, 100 + each % max(2, seeds)) for each in (seed, seed + 1)
    ]
    batch, again = (Network.of(each.result.state) for each in retrains)
    rows: list[Row] = []

    def say(way: str, network: Network, more: Row) -> Row:
        row = {"task": task.name, "way": way, "seed": seed} | figures_of(network, task, data, batch) | more
        rows.append(row)
        return row

    say("nothing", Network.of(base.result.state), {"visits": 0, "cpu": 0.0, "passes": 0})
    network, spent, visits = ours(task, base, data, seed)
    mine = say("ours", network, spent)

    def lack(other: Network) -> float:
        found = figures_of(other, task, data, batch)
        points = [mine["accuracy"] - found["accuracy"], found["disagreement"] - mine["disagreement"]]
        if "still" in found:
            points.append((found["still"] - max(MAX_STILL_NAMED, mine["still"])) / 10)
        return max(points) - SLACK

    warm = cheapest_warm(task, base.result.state, visits, lack, seed)
    row = say("warm, as good", warm.network, {"visits": warm.visits, "cpu": warm.cpu, "rate": warm.rate})
    row["passes"], row["enough"] = warm.visits / len(task.retained), warm.enough
    if len(task.jobs) == 1:
        for name, (tried, more) in by_memory(task, base.result.state, seed).items():
            say(name, tried, more)
    for name, each, trained in zip(("Batch", "Batch again"), (batch, again), retrains, strict=True):
        cost = trained.result.cost
        say(name, each, {"visits": cost.backward_passes, "passes": cost.data_passes, "cpu": trained.cpu})
    return rows


def summary(rows: list[Row], points: float) -> list[Row]:
    """Means over seeds, one row for each method; the floor, and whether the task is conclusive."""
    out: list[Row] = []
    for way in dict.fromkeys(row["way"] for row in rows):
        here = [row for row in rows if row["way"] == way]
        row: Row = {"task": here[0]["task"], "way": way, "note": ""}
        for key in MEANS:
            values = [each[key] for each in here if each.get(key) is not None]
            if values:
                row[key] = statistics.mean(values)
        out.append(row)
    named = {row["way"]: row for row in out}
    floor = named["Batch again"]["disagreement"]
    for row in out:
        row["floor"] = floor
    if reaches(named["nothing"], named, points) and named["nothing"].get("still", 0.0) <= MAX_STILL_NAMED:
        named["nothing"]["note"] = "proves nothing"
    warm = [row for row in rows if row["way"] == "warm, as good"]
    missed = sum(not row["enough"] for row in warm)
    if missed:
        named["warm, as good"]["note"] = f"not as good, {missed} of {len(warm)} seeds"
    objections = [row["objection"] for row in rows if row.get("objection")]
    named["ours"]["note"] = f"audit objects, {len(objections)} of {len(warm)}" if objections else ""
    return out


def reaches(row: Row, named: dict[str, Row], points: float) -> bool:
    """Whether a method is as good as a retrain, by accuracy and disagreement."""
    batch, again = named["Batch"], named["Batch again"]
    short = max(points, abs(batch["accuracy"] - again["accuracy"]))
    near = row["disagreement"] <= again["disagreement"] + MAX_EXTRA_DISAGREEMENT
    return bool(batch["accuracy"] - row["accuracy"] <= short and near)


def targets(rows: list[Row], count: int, points: float) -> list[Target]:
    """The targets of the benchmark."""
    named = {row["way"]: row for row in rows}
    mine, warm, batch, again = (named[way] for way in ("ours", "warm, as good", "Batch", "Batch again"))
    below = batch["accuracy"] - mine["accuracy"]
    noise = abs(batch["accuracy"] - again["accuracy"])
    out = [
        Target("accuracy below Batch", 0.0 if below <= noise else below, points),
        Target("disagreement above the floor", mine["disagreement"] - mine["floor"], MAX_EXTRA_DISAGREEMENT),
    ]
    if "still" in mine:
        out.append(Target("still named %", mine["still"], MAX_STILL_NAMED))
    if not named["nothing"]["note"]:  # else a warm descent of no steps is as good
        out.append(Target("visits / warm's", mine["visits"] / warm["visits"], 0.2))
        if count >= LARGE:
            out.append(Target("CPU / warm's", mine["cpu"] / warm["cpu"], 1.0))
    if count < LARGE:
        out.append(Target("CPU / Batch's", mine["cpu"] / batch["cpu"], 1.0))
    return out


def run(kind: str, data: Path | None, seeds: int, quick: bool) -> Iterator[Report]:
    """One table for each task of an architecture, because each takes long."""
    max_rows = 2_000 if quick else None
    given = images(data, kind != "mlp", max_rows)
    trainings = Trainings(Training(max_epochs=30) if quick else TRAINING[kind])
    points = 1.0 if kind == "lenet5" else 0.5
    what = {"mlp": "MLP 2x100", "small": "three convolutions"}.get(kind, kind)
    console = Console(stderr=True)
    tasks = network_tasks(kind, given)
    for name in list(tasks)[:2] if quick else tasks:
        task, rows = tasks[name](), list[Row]()
        for seed in range(seeds):
            console.print(f"{kind}: {task.name}, seed {seed} ...", highlight=False)
            rows += compare(task, given, trainings, seed, seeds)
        title = f"{given.name}, N = {len(given.train):,}: {what}, {task.name}, means of {seeds} seeds"
        report = Report(f"networks {kind}", title, COLUMNS, summary(rows, points))
        report.targets = targets(report.rows, len(given.train), points)
        yield report
