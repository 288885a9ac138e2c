"""Metrics equal scikit-learn's, and their standard errors cover the truth as often as they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sk

from core.promotion.gate_rule import Limits, judge
from core.quality.scored_rows import Metric, ScoredRows
from core.quality.standard_errors import compare, estimate, value_of


def binary_rows(rng: np.random.Generator, n: int, slope: float = 1.5, ties: bool = False) -> ScoredRows:
    y = (rng.random(n) < 0.3).astype(float)
    logit = slope * (y - 0.4) + rng.normal(size=n)
    p = 1 / (1 + np.exp(-logit))
    p = np.round(p, 1) * 0.98 + 0.01 if ties else p
    loss = -np.log(np.where(y == 1, p, 1 - p))
    return ScoredRows.of("binary", loss, p[:, None], y, rng.uniform(0.5, 2, n))


@pytest.mark.parametrize("ties", [False, True])
def test_binary_metrics_equal_those_of_scikit_learn(ties: bool) -> None:
    rows = binary_rows(np.random.default_rng(1), 400, ties=ties)
    y, p, weight = rows.y, rows.score, rows.weight
    expected = {
        "log_loss": sk.log_loss(y, p, sample_weight=weight),
        "accuracy": sk.accuracy_score(y, p > 0.5, sample_weight=weight),
        "balanced_accuracy": sk.balanced_accuracy_score(y, p > 0.5),
        "auc": sk.roc_auc_score(y, p),
        "average_precision": sk.average_precision_score(y, p),
        "f1": sk.f1_score(y, p > 0.5),
        "brier": sk.brier_score_loss(y, p, sample_weight=weight),
    }
    for metric, value in expected.items():
        assert value_of(rows, metric) == pytest.approx(value, rel=1e-12), metric  # type: ignore[arg-type]
    assert set(rows.metrics) == {"loss", *expected}


def test_metrics_of_several_classes_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(0, 4, 300)
    logits = rng.normal(size=(300, 4)) + 2 * np.eye(4)[y]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    rows = ScoredRows.of("classes", -np.log(p[np.arange(300), y]), p, y.astype(float), np.ones(300))
    assert value_of(rows, "log_loss") == pytest.approx(sk.log_loss(y, p))
    assert value_of(rows, "f1") == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro"))
    assert value_of(rows, "balanced_accuracy") == pytest.approx(sk.balanced_accuracy_score(y, p.argmax(1)))
    assert value_of(rows, "brier") == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    assert "auc" not in rows.metrics


def test_metrics_of_numbers_equal_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    y, weight = rng.normal(size=200), rng.uniform(1, 3, 200)
    mean = y + rng.normal(size=200)
    rows = ScoredRows.of("number", (mean - y) ** 2 / 2, mean[:, None], y, weight)
    assert value_of(rows, "rmse") == pytest.approx(sk.root_mean_squared_error(y, mean, sample_weight=weight))
    assert value_of(rows, "mae") == pytest.approx(sk.mean_absolute_error(y, mean, sample_weight=weight))


METRICS: tuple[Metric, ...] = (
    "loss",
    "accuracy",
    "balanced_accuracy",
    "auc",
    "average_precision",
    "f1",
    "brier",
)


@pytest.mark.parametrize("metric", METRICS)
def test_standard_errors_are_as_large_as_the_spread_of_repeated_samples(metric: Metric) -> None:
    rng = np.random.default_rng(4)
    estimates = [estimate(binary_rows(rng, 300), metric) for _ in range(200)]
    spread = np.std([e.value for e in estimates])
    assert np.mean([e.se for e in estimates]) == pytest.approx(spread, rel=0.2)


@pytest.mark.parametrize("metric", METRICS)
def test_paired_errors_are_as_large_as_the_spread_of_paired_differences(metric: Metric) -> None:
    rng = np.random.default_rng(5)
    pairs = []
    for _ in range(200):
        one = binary_rows(rng, 300)
        p = np.clip(one.score**1.3 + rng.normal(scale=0.02, size=300), 0.001, 0.999)
        loss = -np.log(np.where(one.y == 1, p, 1 - p))
        other = ScoredRows.of("binary", loss, p[:, None], one.y, one.weight)
        pairs.append(compare(one, other, metric))
    spread = np.std([pair.difference for pair in pairs])
    assert np.mean([pair.se for pair in pairs]) == pytest.approx(spread, rel=0.25)
    # pairing matters: the difference of two strongly correlated metrics is known better than either
    assert np.mean([pair.se for pair in pairs]) < 0.8 * estimate(one, metric).se


@pytest.mark.parametrize("metric", METRICS)
def test_rows_of_one_subject_count_as_one_cluster(metric: Metric) -> None:
    """Ten copies of each row say no more than the rows themselves."""
    rows = binary_rows(np.random.default_rng(6), 200)
    rows = replace(rows, weight=np.ones(200))
    copied = rows.take(np.repeat(np.arange(200), 10))
    clusters = np.repeat(np.arange(200), 10)
    tolerance = 0.15 if metric in ("average_precision", "f1") else 1e-9
    assert estimate(copied, metric, clusters).se == pytest.approx(estimate(rows, metric).se, rel=tolerance)
    assert estimate(copied, metric).se < 0.5 * estimate(rows, metric).se


def test_metrics_without_rows_or_with_one_class_are_undefined() -> None:
    rows = binary_rows(np.random.default_rng(7), 50)
    one_class = rows.take(rows.y == 1)
    assert np.isnan(estimate(one_class, "auc").value)
    assert np.isnan(estimate(rows.take(np.array([], int)), "loss").value)
    assert np.isnan(compare(one_class, one_class, "auc").se)


def test_large_holdouts_are_bootstrapped_on_a_sample() -> None:
    small, large = binary_rows(np.random.default_rng(8), 4_000), binary_rows(np.random.default_rng(8), 20_000)
    ratio = estimate(large, "average_precision").se / estimate(small, "average_precision").se
    assert ratio == pytest.approx(np.sqrt(4_000 / 20_000), rel=0.25)


@pytest.mark.parametrize("metric", ["average_precision", "f1"])
def test_subjects_with_many_rows_count_as_clusters_in_large_holdouts(metric: Metric) -> None:
    """Fifty copies of each row, of which only a part is bootstrapped, say no more than the rows themselves."""
    rows = replace(binary_rows(np.random.default_rng(9), 300), weight=np.ones(300))
    copies = np.repeat(np.arange(300), 50)
    error = estimate(rows.take(copies), metric, copies).se
    assert error == pytest.approx(estimate(rows, metric).se, rel=0.3)


def test_a_difference_of_aucs_needs_rows_of_both_classes() -> None:
    rng = np.random.default_rng(11)
    one, other = binary_rows(rng, 200), binary_rows(rng, 200)
    few = np.concatenate([np.flatnonzero(one.y == 1)[:4], np.flatnonzero(one.y == 0)])
    pair = compare(one.take(few), replace(other, y=one.y).take(few), "auc")
    assert np.isfinite(pair.difference)
    assert np.isnan(pair.se)
    assert judge(pair, Limits("auc"))["reason"] == "too_few_rows"
