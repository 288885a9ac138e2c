"""Rounded metrics of windows do not reveal any one subject: whoever has the metrics with and without a subject, as
Prometheus and MLflow keep them, learns nothing about the subject's labels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from core.quality.clusters import number_repeated
from core.quality.erased_records import round_metrics
from core.quality.evaluation import evaluate
from core.quality.evaluation_windows import Scores
from core.quality.scored_rows import ScoredRows
from core.tables.quality import QualityWindow
from tests.core.quality.test_evaluation import problem, trained

ROWS = 80
PER_ROW = {"accuracy"}
"""Shares of rows, which are rounded to four rows."""


def window_of(scores: Scores) -> QualityWindow:
    weight, heaviest = float(scores.weight.sum()), scores.largest_share()
    return QualityWindow(rows=len(scores), weight=weight, heaviest=heaviest, metrics=scores.metrics())


def make_scores(kind: str, seed: int, repeated: bool) -> Scores:
    rng = np.random.default_rng(seed)
    cluster = np.sort(rng.integers(0, ROWS // 2, ROWS)) if repeated else np.arange(ROWS)
    weight = np.ones(ROWS)
    if kind == "number":
        y = rng.standard_t(3, ROWS)
        mean = y + rng.normal(size=ROWS)
        rows = ScoredRows("number", (mean - y) ** 2 / 2, mean, np.zeros(ROWS, np.int64), y, weight)
    elif kind == "classes":
        y = rng.choice(4, ROWS, p=[0.6, 0.3, 0.06, 0.04]).astype(float)
        f = rng.gumbel(size=(ROWS, 4)) + 2 * np.eye(4)[y.astype(int)]
        p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
        rows = ScoredRows.of("classes", -np.log(p[np.arange(ROWS), y.astype(int)]), p, y, weight)
    else:
        y = np.zeros(ROWS)
        y[rng.choice(ROWS, 5, replace=False)] = 1  # a rare class: one of its rows makes the largest difference
        p = 1 / (1 + np.exp(2 - 2 * y - rng.normal(size=ROWS)))
        rows = ScoredRows.of("binary", -np.log(np.where(y == 1, p, 1 - p)), p[:, None], y, weight)
    return Scores(rows.target, np.arange(1, ROWS + 1), y, weight, cluster, {"champion": rows})


@pytest.mark.parametrize("repeated", [False, True], ids=["one row each", "several rows each"])
@pytest.mark.parametrize("kind", ["binary", "classes", "number"])
def test_no_subject_moves_a_rounded_metric_by_more_than_a_step(kind: str, repeated: bool) -> None:
    for seed in range(3):
        scores = make_scores(kind, seed, repeated)
        whole = window_of(scores)
        share = whole.heaviest
        for person in np.unique(scores.cluster):
            rest = window_of(scores.take(scores.cluster != person))
            for contestant, metrics in whole.metrics.items():
                plain = {name: value for name, value in metrics.items() if not name.endswith("_se")}
                for name, value in plain.items():
                    changed = abs(value - rest.metrics[contestant].get(name, math.nan))
                    step = 4 * share if name in PER_ROW else 2 * metrics[f"{name}_se"] / (1 - share)
                    assert changed <= step, (contestant, name, int(person))


def test_a_window_of_one_subject_has_no_rounded_metrics() -> None:
    scores = make_scores("binary", 0, repeated=False)
    alone = replace(scores, cluster=np.zeros(ROWS, np.int64))
    window = window_of(alone)
    assert [round_metrics(metrics, [window]) for metrics in window.metrics.values()] == [{}, {}]
    everybody = window_of(scores)
    assert {"loss", "auc", "average_precision"} <= round_metrics(everybody.metrics["champion"], [everybody]).keys()


@pytest.mark.parametrize("kind", ["binary", "number"])
def test_no_subject_moves_a_rounded_metric_of_the_holdout_by_more_than_a_step(kind: str) -> None:
    """The metrics of a version on a holdout in which subjects have several rows."""
    state, rows = trained(kind, problem(kind)), problem(kind, ROWS, seed=1)
    cluster = np.sort(np.random.default_rng(0).integers(0, ROWS // 4, ROWS))

    def metrics_of(chosen: np.ndarray) -> dict[str, float]:
        [found] = evaluate([state], [rows.take(torch.from_numpy(np.flatnonzero(chosen)))])
        found.clusters = number_repeated(cluster[chosen])
        return found.metrics

    whole = metrics_of(np.ones(ROWS, bool))
    share = whole["heaviest"]
    assert share == np.bincount(cluster).max() / ROWS
    for person in np.unique(cluster):
        rest = metrics_of(cluster != person)
        for name in [name for name in whole if f"{name}_se" in whole and name not in PER_ROW]:
            step = max(2 * whole[f"{name}_se"] / (1 - share), 2 * abs(whole[name]) * share)
            assert abs(whole[name] - rest[name]) <= step, (name, int(person))


def test_a_window_of_an_erasure_does_not_decide_between_two_labels() -> None:
    """Whoever knows all other rows can train with either label of the erased row, and round what each of the versions
    predicts. No figure that occurs with the one label is impossible with the other, but for a few draws."""
    world = np.random.default_rng(5)
    w, x = world.normal(size=4), world.normal(size=(400, 4))
    y = (world.random(400) < 1 / (1 + np.exp(-x @ w))).astype(int)
    other = np.where(np.arange(400) == 0, 1 - y, y)
    models = [LogisticRegression(tol=1e-8).fit(x, labels) for labels in (y, other)]
    crossed, decided, total = 0, 0, 0
    for seed in range(5):
        new = np.random.default_rng(seed).normal(size=(60, 4))
        truth = (np.random.default_rng(seed + 100).random(60) < 1 / (1 + np.exp(-new @ w))).astype(float)
        windows = []
        for model in models:
            p = model.predict_proba(new)[:, 1]
            loss = -np.log(np.where(truth == 1, p, 1 - p))
            rows = ScoredRows.of("binary", loss, p[:, None], truth, np.ones(60))
            windows.append(window_of(Scores("binary", np.arange(60), truth, rows.weight, np.arange(60), {"a": rows})))
        sides = [window.metrics["a"] for window in windows]
        crossed += round_metrics(sides[0], windows[:1]) != round_metrics(sides[1], windows[1:])
        draw = Random(seed).random
        seen = [[round_metrics(sides[k], [windows[k]], draw) for _ in range(200)] for k in range(2)]
        for metric in ("loss", "auc", "brier", "loss_se", "auc_se"):
            values = [[found[metric] for found in side] for side in seen]
            decided += sum(value not in values[1] for value in values[0])
            total += len(values[0])
            if not metric.endswith("_se"):  # charts stay where they are
                assert np.mean(values[0]) == pytest.approx(sides[0][metric], abs=0.3 * sides[0][f"{metric}_se"])
    assert crossed > 0, "rounded without chance, some figures decide"
    assert decided / total < 0.02
