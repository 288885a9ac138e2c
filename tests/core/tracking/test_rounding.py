"""What MLflow keeps for good tells no row of the holdout."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from core.tracking.timeline import baseline_metrics, holdout_metrics
from core.versions.privacy_rounding import coarse
from tests.core.tracking.shown import Shown
from tests.core.tracking.tracked_model import NewTrackedModel, cloud


def test_no_metric_in_mlflow_reveals_the_loss_of_a_holdout_row(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    tracked = new_tracked()
    tracked.add(*cloud(300))
    tracked.adapt()
    for seed in (1, 2):
        tracked.add(*cloud(2, seed))
        tracked.adapt()
    tracked.retrain()
    tracked.publish(server)
    shown = Shown(client, tracked.name)
    exact = [value for v in tracked.versions for value in (v.metrics["loss"], (v.evaluation or {})["frozen"]["loss"])]
    told = [run.data.metrics["holdout/loss"] for run in shown.runs().values()]
    for line in shown.lines():
        told += shown.points(line, "loss/holdout").values()
    assert len(set(told)) < len(set(exact))
    assert not set(told) & set(exact)
    rows = tracked.versions[-1].metrics["rows"]
    step = min(abs(a - b) for a, b in combinations(set(told), 2)) if len(set(told)) > 1 else 1.0
    assert step * rows > 1, "a step of the grid is more than a row of this cloud loses"


@pytest.mark.parametrize("outlier", [1.0, 30.0, 1000.0])
def test_a_row_moves_a_mean_by_less_than_a_step_whatever_it_is(outlier: float) -> None:
    losses = np.append(np.random.default_rng(0).exponential(0.2, 399), outlier)

    def figures(values: Any) -> dict[str, float]:
        error = float(values.std() / np.sqrt(len(values)))
        return coarse({"rows": len(values), "loss": float(values.mean()), "loss_se": error})

    with_it = figures(losses)
    moved = abs(losses.mean() - losses[:-1].mean())
    steps = 2 * losses.std() / np.sqrt(len(losses))
    assert moved < steps * 0.51
    assert with_it["loss"] != float(losses.mean())


def test_the_timeline_has_no_holdout_metrics_that_rounding_would_distort() -> None:
    metrics = {"accuracy": 0.5, "accuracy_se": 0.25, "baseline_accuracy": 0.5}
    few, many = {"rows": 4, **metrics}, {"rows": 400, **metrics}
    assert holdout_metrics(few) == baseline_metrics(few) == {}  # rounded to steps of four rows, 0.5 is 0 or 1
    assert holdout_metrics(many)["accuracy/holdout"] == baseline_metrics(many)["accuracy/holdout_baseline"] == 0.5
