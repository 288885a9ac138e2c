"""Metrics of targets of several labels, held against scikit-learn, and rows of versions with other labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, log_loss, roc_auc_score

from core.quality.evaluation import describe_labels
from core.quality.evaluation_windows import Scores, describe, merge
from core.quality.label_rows import restrict, score_labels, shared_labels
from core.quality.scored_rows import Metric, MetricOptions, ScoredRows
from core.quality.standard_errors import compare, estimate, value_of

NAMES = ("red", "green", "blue")


def rows_of(seed: int, n: int = 200, names: tuple[str, ...] = NAMES) -> tuple[ScoredRows, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mean = rng.uniform(0.02, 0.98, (n, len(names)))
    y = (rng.random(mean.shape) < mean).astype(float)
    loss = -(y * np.log(mean) + (1 - y) * np.log1p(-mean)).sum(1)
    return score_labels(names, loss, mean, y, np.ones(n), MetricOptions()), mean, y


def test_metrics_are_macro_averages_of_scikit_learn() -> None:
    rows, mean, y = rows_of(0)
    expected = {
        "loss": sum(log_loss(y[:, k], mean[:, k]) for k in range(3)),
        "log_loss": np.mean([log_loss(y[:, k], mean[:, k]) for k in range(3)]),
        "brier": np.mean((mean - y) ** 2),
        "accuracy": accuracy_score(y, mean > 0.5),
        "auc": roc_auc_score(y, mean),
        "average_precision": average_precision_score(y, mean),
        "f1": f1_score(y, mean > 0.5, average="macro"),
    }
    assert {metric: value_of(rows, metric) for metric in rows.metrics} == pytest.approx(expected)


def test_a_label_that_does_not_occur_has_no_auc_and_does_not_count() -> None:
    rows, mean, y = rows_of(1)
    y[:, 1] = 0
    rows = score_labels(NAMES, rows.loss, mean, y, rows.weight, MetricOptions())
    both = [0, 2]
    assert value_of(rows, "auc") == pytest.approx(roc_auc_score(y[:, both], mean[:, both]))
    assert value_of(rows, "average_precision") == pytest.approx(average_precision_score(y[:, both], mean[:, both]))
    assert estimate(rows, "average_precision").se > 0


@pytest.mark.parametrize("metric", ["auc", "average_precision", "f1", "log_loss", "accuracy"])
def test_standard_errors_match_the_spread_over_samples(metric: Metric) -> None:
    drawn = [rows_of(seed, 150)[0] for seed in range(200)]
    spread = np.std([value_of(rows, metric) for rows in drawn])
    told = np.mean([estimate(rows, metric).se for rows in drawn[:20]])
    assert 0.75 * spread <= told <= 2.0 * spread  # the sum over labels may be overstated, never understated by much
    clustered = estimate(drawn[0], metric, np.arange(150)).se
    assert 0.7 * spread <= clustered <= 1.4 * spread


@pytest.mark.parametrize("metric", ["average_precision", "f1"])
def test_reported_standard_errors_match_the_spread_over_samples(metric: Metric) -> None:
    drawn = [rows_of(seed, 150)[0] for seed in range(200)]
    spread = np.std([value_of(rows, metric) for rows in drawn])
    for clusters in (None, np.arange(150)):
        told = np.mean([describe(rows, clusters)[f"{metric}_se"] for rows in drawn[:20]])
        assert 0.75 * spread <= told <= 2.0 * spread


def test_standard_errors_of_single_labels_are_clustered_by_subject() -> None:
    rows, _, _ = rows_of(0, 100)
    twice = rows.take(np.repeat(np.arange(100), 2))  # two equal rows per subject tell no more than one
    for metric in ("average_precision", "log_loss", "f1", "auc"):
        alone = describe_labels(rows, None)[f"green/{metric}_se"]
        assert describe_labels(twice, np.repeat(np.arange(100), 2))[f"green/{metric}_se"] == pytest.approx(
            alone, rel=0.1
        )


def test_versions_with_other_labels_are_compared_by_the_shared_ones() -> None:
    new, mean, y = rows_of(2, names=("blue", "red", "new"))
    old = score_labels(
        ("red", "blue"), np.zeros(len(y)), mean[:, [1, 0]] / 2, y[:, [1, 0]], np.ones(len(y)), MetricOptions()
    )
    names = shared_labels([old, new])
    first, second = restrict(old, names), restrict(new, names)
    assert first.labels == second.labels == ("blue", "red")
    np.testing.assert_array_equal(first.y, second.y)
    assert second.loss == pytest.approx(-(y * np.log(mean) + (1 - y) * np.log1p(-mean))[:, :2].sum(1))
    assert value_of(first, "loss") > value_of(second, "loss")
    assert compare(first, second, "average_precision").difference == pytest.approx(0)  # halving keeps the order


def test_windows_with_other_labels_are_merged_by_the_shared_ones() -> None:
    def scores(rows: ScoredRows, start: int) -> Scores:
        position = np.arange(start, start + len(rows))
        return Scores("labels", position, rows.y, rows.weight, position, {"champion": rows})

    one, other = rows_of(3, 30)[0], rows_of(4, 50, ("new", "blue", "red"))[0]
    stored = [Scores.from_bytes(scores(rows, start).to_bytes()) for rows, start in ((one, 0), (other, 30))]
    assert stored[1].contestants["champion"].labels == ("new", "blue", "red")
    merged = merge(stored)
    champion = merged.contestants["champion"]
    assert (champion.labels, len(champion)) == (("blue", "red"), 80)
    parts = [restrict(one, ("blue", "red")), restrict(other, ("blue", "red"))]
    expected = (30 * value_of(parts[0], "log_loss") + 50 * value_of(parts[1], "log_loss")) / 80
    assert merged.metrics()["champion"]["log_loss"] == pytest.approx(expected)
    assert merged.metrics()["baseline"]["log_loss"] > 0
