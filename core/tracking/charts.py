"""Charts of versions for MLflow, reports and pages: how well versions predict, and what they cost."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

from markupsafe import Markup

from core.charts import Axis, Bar, Point, Series, bar_chart, curve, line_chart, matrix_chart
from core.kprior.model.spec import Target, values_of
from core.tables.documents import ReliabilityBin
from core.tables.versions import Version, VersionKind
from core.tracking.formats import show_metric, spell_metric
from core.tracking.lineage import Lineage
from core.versions.privacy_rounding import coarse

LABELS = {"adapted": "adapted (in service)", "retrained": "full retrain", "frozen": "frozen first version"}
OVERVIEW = ("cost_of_versions.svg", "cost_against_retrain.svg", "adapted_against_retrained.svg")
"""Charts of a model by version, as opposed to charts of one version."""
UP_TO_ONE = ("accuracy", "auc", "average_precision", "balanced_accuracy", "f1", "r2", "recall_at_precision")
"""Metrics with a maximum of 1."""
Rates = Sequence[float]
RATES: tuple[Literal["false_positive_rate", "recall", "precision"], ...] = (
    "false_positive_rate",
    "recall",
    "precision",
)
LEAST_SECONDS = 1e-4
"""Shorter times are drawn as this time, because a logarithmic axis has no zero."""


def of_version(version: Version, lineage: Lineage, target: Target) -> dict[str, str]:
    """The charts of a version, by file name. `lineage` ends with it; `target` is what it predicts."""
    return overview(lineage) | of_predictions(version, target)


def overview(lineage: Lineage) -> dict[str, str]:
    """Charts of a model by version."""
    each, total, quality = OVERVIEW
    drawn = {each: draw_costs(lineage), total: draw_total_cost(lineage)} if lineage.line else {}
    if lineage.versions and (metric := lineage.headline(lineage.versions[-1].metrics)):
        frozen = [(v.number, coarse((v.evaluation or {}).get("frozen", {})).get(metric)) for v in lineage.line]
        lines = {"adapted": lineage.line, "retrained": lineage.trained}
        points = {kind: [(v.number, coarse(v.metrics).get(metric)) for v in line] for kind, line in lines.items()}
        title = f"{lineage.model.name}: {spell_metric(metric)} on the holdout (rounded)"
        drawn[quality] = draw_history(metric, "version", {"frozen": frozen} | points, title)
    return drawn


def of_predictions(version: Version, target: Target) -> dict[str, str]:
    """Charts of a version's predictions on the holdout."""
    evaluation, drawn = version.evaluation or {}, {}
    if evaluation.get("reliability"):
        drawn["reliability.svg"] = draw_reliability(version, evaluation["reliability"], target["kind"])
    if target["kind"] == "labels" and (bars := label_bars(version, target)):
        title = f"Version {version.number}: average precision of each label (rounded)"
        drawn["labels.svg"] = bar_chart(bars, Axis(maximum=1.0), title=title)
    if evaluation.get("coverage"):
        drawn["coverage.svg"] = draw_reliability(version, evaluation["coverage"], target["kind"])
    if found := evaluation.get("curve"):
        # in steps of one percent: MLflow shows no more digits than a reader can see
        rates = {name: [round(value, 2) for value in found[name]] for name in RATES}
        drawn["roc.svg"] = draw_curve(version, "ROC curve", rates["false_positive_rate"], rates["recall"])
        drawn["precision_recall.svg"] = draw_curve(
            version, "precision-recall curve", rates["recall"], rates["precision"]
        )
    if counts := evaluation.get("confusion"):
        names, title = (
            [str(value) for value in values_of(target)],
            f"Version {version.number}: confusion matrix",
        )
        drawn["confusion.svg"] = matrix_chart(counts, names, ("predicted", "true"), title=title, role=role_of(version))
    return drawn


def label_bars(version: Version, target: Target) -> list[Bar]:
    """The average precision of each label on the holdout, with two standard errors."""
    metrics, bars = coarse(version.metrics), []
    for value in values_of(target):
        found, error = (metrics.get(f"{value}/average_precision{end}") for end in ("", "_se"))
        if found is not None:
            ends = (None, None) if error is None else (max(0.0, found - 2 * error), min(1.0, found + 2 * error))
            bars.append(Bar(str(value), found, role_of(version), *ends))
    return bars


def draw_history(
    metric: str, step: str, lines: Mapping[str, Sequence[tuple[int, float | None]]], title: str = ""
) -> str:
    """A metric of the model in service, of full retrains, and of the first version, by version or by position."""
    series = []
    for kind, line in lines.items():
        points = [
            Point(x, y, title=f"{kind}: {show_metric(y, metric)} at {step} {x}") for x, y in line if y is not None
        ]
        if points and kind == "retrained":
            series.append(Series(LABELS[kind], points, kind, line="none", dots="open"))
        elif points:
            series.append(Series(LABELS[kind], points, kind, line="dashed" if kind == "frozen" else "solid"))
    x = Axis(step if title else "", "count")
    y = Axis(kind="percent" if metric == "accuracy" else "number", maximum=1.0 if metric in UP_TO_ONE else math.inf)
    label = f"{spell_metric(metric)} of the adapted model, full retrains and the frozen first version by {step}"
    return line_chart(series, x, y, title=title, label=label)


def draw_costs(lineage: Lineage) -> str:
    """Seconds for each version, compared with full retrains."""
    kinds = {"adapted": [v for v in lineage.line if v.kind is VersionKind.ADAPTED], "retrained": lineage.trained}
    series = [
        Series(LABELS[kind], [Point(v.number, max(seconds_of(v), LEAST_SECONDS)) for v in versions], kind, line="none")
        for kind, versions in kinds.items()
        if versions
    ]
    y, title = Axis("seconds, each version", log=True), f"{lineage.model.name}: seconds for each version"
    return line_chart(series, Axis("version", "count"), y, title=title)


def draw_total_cost(lineage: Lineage) -> str:
    """Seconds in total, compared with a full retrain each time."""
    versions = [v.number for v in lineage.line]
    spent = list(accumulate(map(seconds_of, lineage.line)))
    unspent = list(accumulate(seconds_of(t) if (t := lineage.retrain_of(v)) else 0.0 for v in lineage.line))
    title = f"{lineage.model.name}: seconds in total"
    if spent[-1] > 0 and len(versions) > 1:
        title += f"; retraining each time would take {unspent[-1] / spent[-1]:.1f} times as long"
    saved = [Point(x, y, y, max(y, other)) for x, y, other in zip(versions, spent, unspent, strict=True)]
    retrained = [Point(x, y) for x, y in zip(versions, unspent, strict=True)]
    series = [
        Series("retraining each time (estimated)", retrained, "retrained", line="dashed", dots="none"),
        Series("actual", saved, dots="none"),
    ]
    return line_chart(series, Axis("version", "count"), Axis("seconds, total", include=(0.0,)), title=title)


def draw_curve(version: Version, name: Literal["ROC curve", "precision-recall curve"], x: Rates, y: Rates) -> Markup:
    """A curve over all thresholds."""
    roc = name == "ROC curve"
    points = [Point(0.0, 0.0)] * roc + [Point(a, b) for a, b in zip(x, y, strict=True)]
    return curve(
        [Series("holdout", points, role_of(version), dots="none")],
        *(("false positive rate", "true positive rate") if roc else ("recall", "precision")),
        title=f"Version {version.number}: {name}",
        diagonal="random" if roc else "",
    )


def draw_reliability(version: Version, bins: Sequence[ReliabilityBin], kind: str) -> str:
    """How often predictions of a given confidence are right; for numbers, how often they are within an interval."""
    words = {
        "binary": ("predicted probability of 1", "fraction of 1"),
        "labels": ("predicted probability of a label", "fraction with the label"),
        "number": ("level of the interval", "fraction within"),
    }
    largest = max(b["count"] for b in bins)
    points = [Point(b["confidence"], b["accuracy"], area=b["count"] / largest) for b in bins]
    return curve(
        [Series("holdout (area: examples)", points, role_of(version))],
        *words.get(kind, ("probability of the predicted class", "fraction correct")),
        title=f"Version {version.number}: {'coverage' if kind == 'number' else 'reliability'} on the holdout",
        diagonal="perfectly calibrated",
    )


def role_of(version: Version) -> str:
    return "adapted" if version.kind is VersionKind.ADAPTED else "retrained"


def seconds_of(version: Version) -> float:
    return version.cost.get("seconds", 0.0)
