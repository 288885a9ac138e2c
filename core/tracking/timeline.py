"""The timeline: three runs (adapted, retrained, frozen) whose steps are versions; `ledger/position` is the position of
each."""

from collections.abc import Mapping

from mlflow.entities import Metric

from core.charts import COLOURS
from core.quality.erased_records import MIN_ROUNDED_ROWS, round_metrics
from core.quality.quality_report import combine
from core.tables.versions import Version, VersionKind
from core.tracking import charts, descriptions
from core.tracking.gateway import Gateway
from core.tracking.lineage import COSTS, Lineage
from core.tracking.runs import NOTE, fill_figures, metrics_at, milliseconds
from core.versions.privacy_rounding import coarse, coarse_certificate, coarse_pair

RUNS = ("adapted", "retrained", "frozen")
BASELINE = "baseline_"
UNSEEN = "Test-then-train"
"""Group of charts of metrics on new examples. Capitals come first in MLflow's order of groups."""


def fill(gateway: Gateway, experiment: str, version: Version, lineage: Lineage) -> dict[str, str]:
    """Add the metrics of a version to the three runs; returns their ids. `lineage` ends with the version."""
    adapted: dict[str, object] = {}
    if lineage.serves(version):
        adapted = holdout_metrics(version.metrics) | baseline_metrics(version.metrics)
        adapted |= cost_metrics(version, lineage) | distance_metrics(version)
    # also of a rejected version: the champion predicted its examples, and the frozen version's run has them as well
    adapted |= unseen_metrics(version, lineage, "champion") | unseen_metrics(version, lineage, "baseline")
    lines = {
        "adapted": metrics_at(version, adapted) + disagreement_metrics(lineage, version),
        "retrained": metrics_at(version, retrained_metrics(version, lineage)),
        "frozen": metrics_at(version, frozen_metrics(version, lineage) | unseen_metrics(version, lineage, "frozen")),
    }
    runs = ensure(gateway, experiment, lineage)
    for name, metrics in lines.items():
        if metrics:
            metrics += metrics_at(version, {"ledger/position": version.position})
        gateway.client.log_batch(runs[name], metrics, synchronous=True)
    return runs


def describe(gateway: Gateway, runs: dict[str, str], pictures: dict[str, bytes], prefix: str, lineage: Lineage) -> None:
    """Update the descriptions of the three runs. `lineage` is complete, and the charts are its newest."""
    for name, run_id in runs.items():
        gateway.client.set_tag(run_id, NOTE, descriptions.describe_line(name, lineage))
        # finished, although more may follow: a run that never ends looks stuck
        gateway.client.set_terminated(run_id, "FINISHED", milliseconds(lineage.versions[-1].created_at))
    overview = {name: picture for name, picture in pictures.items() if name in charts.OVERVIEW}
    fill_figures(gateway, runs["adapted"], overview, prefix)


def ensure(gateway: Gateway, experiment: str, lineage: Lineage) -> dict[str, str]:
    """The ids of the three runs."""
    found = {run.data.tags.get("amend.line"): run.info.run_id for run in gateway.client.search_runs([experiment])}
    start = milliseconds(lineage.versions[0].created_at) - len(RUNS)  # before the end, which the first version may set
    # MLflow lists the newest run first
    for i, name in enumerate(reversed(RUNS)):
        if name not in found:
            tags = {"amend.line": name, "amend.model": lineage.model.name, "mlflow.runColor": COLOURS[name]}
            found[name] = gateway.client.create_run(experiment, start + i, tags, name).info.run_id
    return {name: found[name] for name in RUNS}


def holdout_metrics(metrics: Mapping[str, float]) -> dict[str, object]:
    """Metrics and their standard errors, grouped by metric; the run of the job has the number of rows.

    A holdout of very few rows has none: the steps of the rounding are as wide as the range of the metrics.
    """
    if metrics.get("rows", 0) < MIN_ROUNDED_ROWS:
        return {}
    metrics = coarse(metrics)
    names = {name: name.removesuffix("_se") for name in metrics if name != "rows" and not name.startswith(BASELINE)}
    return {f"{of}/holdout{'_se' if of != name else ''}": metrics[name] for name, of in names.items()}


def baseline_metrics(metrics: Mapping[str, float]) -> dict[str, object]:
    """The metrics of a constant prediction, grouped by metric; none for a holdout of very few rows."""
    if metrics.get("rows", 0) < MIN_ROUNDED_ROWS:
        return {}
    found = {name.removeprefix(BASELINE): v for name, v in coarse(metrics).items() if name.startswith(BASELINE)}
    return {f"{name}/holdout_baseline": value for name, value in found.items() if not name.endswith("_se")}


def unseen_metrics(version: Version, lineage: Lineage, contestant: str) -> dict[str, object]:
    """Rounded test-then-train metrics of the new examples of the version's job, predicted before it learnt them.

    A job that makes a second version, because the first one was rejected, has them at the first one.
    """
    if any(older.job_id == version.job_id for older in lineage.versions if older.number < version.number):
        return {}
    ours = [w for w in lineage.windows if w.job_id is not None and w.job_id == version.job_id]
    if sum(window.rows for window in ours) < MIN_ROUNDED_ROWS:
        return {}
    metrics = combine(ours).get(contestant, {})
    suffix = "_baseline" if contestant == "baseline" else ""
    rounded = round_metrics(metrics, ours)
    return {f"{UNSEEN}/{name}{suffix}": value for name, value in rounded.items() if not name.endswith("_se")}


def distance_metrics(version: Version) -> dict[str, object]:
    certificate = coarse_certificate(version.certificate)
    return {"distance/bound": certificate.relative if certificate else None}


def cost_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """The cost of a version, and the total of all versions in service until then."""
    made: dict[str, object] = {}
    for what in COSTS:
        made |= {f"cost/{what}": lineage.cost_of(version, what), f"cost/{what}_total": lineage.total_cost(what)}
    return made


def retrained_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """The metrics of a full training, and at every version the estimated total cost of full trainings until then."""
    made: dict[str, object] = {}
    if version.kind is VersionKind.TRAINED:
        made |= holdout_metrics(version.metrics)
        made |= {f"cost/{what}": lineage.cost_of(version, what) for what in COSTS}
    if lineage.serves(version):
        made |= {f"cost/{what}_total": lineage.retrain_cost(what) for what in COSTS}
    return made


def frozen_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """The metrics of the first version on the holdout of this version."""
    if not lineage.serves(version):
        return {}
    first = version is lineage.versions[0]
    return holdout_metrics(version.metrics if first else (version.evaluation or {}).get("frozen") or {})


def disagreement_metrics(lineage: Lineage, version: Version) -> list[Metric]:
    """The disagreement of the adapted model with this full retrain."""
    comparison = lineage.comparison_of(version)
    if comparison is None or comparison.retrained != version.number:
        return []
    figures = coarse_pair(comparison.result, version.metrics)
    return metrics_at(version, {"distance/disagreement": figures.get("disagreement")})
