"""The timeline: a model adapted, retrained and frozen, as three runs whose steps are versions; `ledger/position` says
for which position of the ledger each stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow.entities import Metric

from core.tables.versions import Version, VersionKind
from core.tracking import charts, descriptions
from core.tracking.lineage import Lineage
from core.tracking.runs import NOTE, fill_figures, metrics_at, milliseconds
from core.versions.privacy_rounding import coarse, coarse_certificate, coarse_pair

RUNS = ("adapted", "retrained", "frozen")
BASELINE = "baseline_"


def fill(client: Any, experiment: str, version: Version, lineage: Lineage) -> dict[str, str]:
    """Add what a version says to the three runs, and tell their ids. `lineage` ends with it."""
    adapted: dict[str, object] = {}
    if lineage.serves(version):
        adapted = holdout_metrics(version.metrics) | baseline_metrics(version.metrics)
        adapted |= cost_metrics(version, lineage) | distance_metrics(version)
    lines = {
        "adapted": metrics_at(version, adapted) + disagreement_metrics(lineage, version),
        "retrained": metrics_at(version, retrained_metrics(version, lineage)),
        "frozen": metrics_at(version, frozen_metrics(version, lineage)),
    }
    runs = ensure(client, experiment, lineage)
    for name, metrics in lines.items():
        if metrics:
            metrics += metrics_at(version, {"ledger/position": version.position})
        client.log_batch(runs[name], metrics, synchronous=True)
    return runs


def describe(client: Any, runs: dict[str, str], pictures: dict[str, bytes], prefix: str, lineage: Lineage) -> None:
    """Say what the three runs show altogether. `lineage` is the whole one, and the pictures are its newest."""
    for name, run_id in runs.items():
        client.set_tag(run_id, NOTE, descriptions.describe_line(name, lineage))
        # finished, though more may come: a run that never ends looks as if it were stuck
        client.set_terminated(run_id, "FINISHED", milliseconds(lineage.versions[-1].created_at))
    overview = {name: picture for name, picture in pictures.items() if name in charts.OVERVIEW}
    fill_figures(client, runs["adapted"], overview, prefix)


def ensure(client: Any, experiment: str, lineage: Lineage) -> dict[str, str]:
    """The ids of the three runs."""
    found = {run.data.tags.get("amend.line"): run.info.run_id for run in client.search_runs([experiment])}
    start = milliseconds(lineage.versions[0].created_at)
    # the newest run is the first in every list and legend
    for i, name in enumerate(reversed(RUNS)):
        if name not in found:
            tags = {"amend.line": name, "amend.model": lineage.model.name, "mlflow.runColor": charts.COLOURS[name]}
            found[name] = client.create_run(experiment, start + i, tags, name).info.run_id
    return {name: found[name] for name in RUNS}


def holdout_metrics(metrics: Mapping[str, float]) -> dict[str, object]:
    """Figures and their standard errors, in a group each; on how many rows is told by the run of the job."""
    metrics = coarse(metrics)
    names = {name: name.removesuffix("_se") for name in metrics if name != "rows" and not name.startswith(BASELINE)}
    return {f"{of}/holdout{'_se' if of != name else ''}": metrics[name] for name, of in names.items()}


def baseline_metrics(metrics: Mapping[str, float]) -> dict[str, object]:
    """What a constant answer would get, in the group of the figure."""
    found = {name.removeprefix(BASELINE): v for name, v in coarse(metrics).items() if name.startswith(BASELINE)}
    return {f"{name}/holdout_baseline": value for name, value in found.items() if not name.endswith("_se")}


def distance_metrics(version: Version) -> dict[str, object]:
    return {"distance/bound": coarse_certificate(version.certificate).get("relative")}


def cost_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """The cost of a version, and of all in service until then."""
    made: dict[str, object] = {}
    for what in ("seconds", "backward_passes"):
        made |= {f"cost/{what}": version.cost.get(what), f"cost/{what}_total": lineage.total_cost(what)}
    return made


def retrained_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """A full training as it was measured; at every version, what full trainings would have cost until then."""
    made: dict[str, object] = {}
    if version.kind is VersionKind.TRAINED:
        made |= holdout_metrics(version.metrics)
        made |= {f"cost/{what}": version.cost.get(what) for what in ("seconds", "backward_passes")}
    if lineage.serves(version):
        made |= {f"cost/{what}_total": lineage.retrain_cost(what) for what in ("seconds", "backward_passes")}
    return made


def frozen_metrics(version: Version, lineage: Lineage) -> dict[str, object]:
    """The first version on the holdout of this one."""
    if not lineage.serves(version):
        return {}
    first = version is lineage.versions[0]
    return holdout_metrics(version.metrics if first else (version.evaluation or {}).get("frozen") or {})


def disagreement_metrics(lineage: Lineage, version: Version) -> list[Metric]:
    """How far the adapted model was from this full retrain."""
    comparison = lineage.comparison_of(version)
    if comparison is None or comparison.retrained != version.number:
        return []
    figures = coarse_pair(comparison.figures, version.metrics)
    return metrics_at(version, {"distance/disagreement": figures.get("disagreement")})
