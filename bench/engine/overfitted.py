"""An overfitted network that must forget 500 of its rows: can these be recognised by their losses?"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch

from bench.engine.descents import RATES, Network, Trainings, warm_descent
from bench.engine.network_tasks import Images, NetworkTask, images
from bench.engine.networks import figures_of, ours
from bench.engine.tables import Report, Row, Target
from core.kprior import RemoveData, Training

DELTA = 1e-3
LEARNING = Training(max_epochs=100, patience=None)
"""Epochs, far more than the labels need."""
COLUMNS = {
    "way": "way|",
    "removed_loss": "loss of\nremoved|.4f",
    "unseen_loss": "loss of\nunseen|.4f",
    "auc": "AUC|.3f",
    "kept": "accuracy\non kept|.2f",
    "accuracy": "accuracy|.2f",
    "disagreement": "differs\nfrom Batch|.2f",
    "visits": "row\nvisits|,.0f",
    "cpu": "CPU s|.2f",
}
MEANS = tuple(COLUMNS)[1:]


def forgetting(given: Images) -> NetworkTask:
    """Few rows and a tiny penalty; random rows are removed."""
    rows = given.train
    gone = torch.zeros(len(rows), dtype=torch.bool)
    gone[torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))[: min(500, len(rows) // 10)]] = True
    spec, removed = given.spec({"kind": "mlp", "hidden": [100, 100]}, DELTA), rows.take(gone)
    return NetworkTask("forget", spec, rows, [[RemoveData([removed])]], spec, rows.take(~gone), removed=removed)


def run(data: Path | None, seeds: int, quick: bool) -> Report:
    """Means over seeds."""
    given = images(data, False, 600 if quick else 5_000)
    task = forgetting(given)
    trainings = Trainings(Training(max_epochs=20, patience=None) if quick else LEARNING)
    every: list[Row] = []
    removed = task.removed
    assert removed is not None
    for seed in range(seeds):
        base_key, batch_key = task.keys()
        base = trainings.get(base_key, task.spec, task.base, seed)
        retrain = trainings.get(batch_key, task.new_spec, task.retained, 100 + seed)
        batch, start = Network.of(retrain.result.state), base.result.state
        mine, spent, visits = ours(task, base, given, seed)
        ways = {"nothing": (Network.of(start), 0, 0.0), "ours": (mine, spent["visits"], spent["cpu"])}
        for multiple in (1, 5):
            tried = [
                warm_descent(start, task.new_spec, [task.retained], [multiple * visits[0]], rate, seed)
                for rate in RATES
            ]
            # the rate whose removed rows are nearest to what Batch makes of them
            wanted = float(batch.losses(removed).mean())
            network, cpu, seen = min(tried, key=lambda t: abs(float(t[0].losses(removed).mean()) - wanted))
            ways[f"warm, {multiple}x our visits"] = (network, seen, cpu)
        ways["Batch"] = (batch, retrain.result.cost.backward_passes, retrain.cpu)
        for way, (network, seen, cpu) in ways.items():
            row: Row = {"way": way, "seed": seed, "visits": seen, "cpu": cpu}
            every.append(row | figures_of(network, task, given, batch))
    title = f"{given.name}, N = {len(task.base):,}: overfitted MLP 2x100, {len(removed)} random rows removed"
    report = Report("overfitted", f"{title}, means of {seeds} seeds", COLUMNS)
    for way in dict.fromkeys(row["way"] for row in every):
        here = [row for row in every if row["way"] == way]
        report.rows.append({"way": way} | {key: statistics.mean(row[key] for row in here) for key in MEANS})
    report.targets = [] if quick else targets(report.rows)
    return report


def targets(rows: list[Row]) -> list[Target]:
    """The targets of the benchmark."""
    named = {row["way"]: row for row in rows}
    mine, batch, nothing = named["ours"], named["Batch"], named["nothing"]
    ratio = mine["removed_loss"] / batch["removed_loss"]
    return [
        Target("loss of removed rows, factor from Batch's", max(ratio, 1 / max(ratio, 1e-300)), 2),
        Target("accuracy on kept rows, points lost", nothing["kept"] - mine["kept"], 0.5),
        Target("AUC, difference from Batch's", abs(mine["auc"] - batch["auc"]), 0.02),
    ]
