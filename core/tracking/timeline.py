"""The timeline: a model adapted, retrained and frozen, as three runs whose steps are positions of the ledger."""

from __future__ import annotations

from typing import Any

from mlflow.entities import Metric

from core.tables.versions import Version, VersionKind
from core.tracking import charts, descriptions
from core.tracking.lineage import Story
from core.tracking.runs import NOTE, fill_figures, milliseconds, points
from core.versions.rounding import coarse, coarse_certificate, coarse_pair

RUNS = ("adapted", "retrained", "frozen")


def fill(client: Any, experiment: str, version: Version, story: Story) -> dict[str, str]:
    """Add what a version says to the three runs, and tell their ids. `story` ends with it."""
    adapted = measured(version.metrics) | spent(version, story) | distances(version) if story.serves(version) else {}
    lines = {
        "adapted": points(version, adapted) + compared(story, version),
        "retrained": points(version, retrained(version, story)),
        "frozen": points(version, frozen(version, story)),
    }
    runs = ensure(client, experiment, story)
    for name, metrics in lines.items():
        client.log_batch(runs[name], metrics, synchronous=True)
    return runs


def describe(client: Any, runs: dict[str, str], pictures: dict[str, bytes], story: Story) -> None:
    """Say what the three runs show altogether. `story` is the whole one, and the pictures are its newest."""
    for name, run_id in runs.items():
        client.set_tag(run_id, NOTE, descriptions.of_line(name, story))
        # finished, though more may come: a run that never ends looks as if it were stuck
        client.set_terminated(run_id, "FINISHED", milliseconds(story.versions[-1].created_at))
    overview = {name: picture for name, picture in pictures.items() if name in charts.OVERVIEW}
    fill_figures(client, runs["adapted"], overview)


def ensure(client: Any, experiment: str, story: Story) -> dict[str, str]:
    """The ids of the three runs."""
    found = {run.data.tags.get("amend.line"): run.info.run_id for run in client.search_runs([experiment])}
    start = milliseconds(story.versions[0].created_at)
    # the newest run is the first in every list and legend
    for i, name in enumerate(reversed(RUNS)):
        if name not in found:
            tags = {"amend.line": name, "amend.model": story.model.name, "mlflow.runColor": charts.COLOURS[name]}
            found[name] = client.create_run(experiment, start + i, tags, name).info.run_id
    return {name: found[name] for name in RUNS}


def measured(metrics: dict[str, Any]) -> dict[str, Any]:
    """Figures and their standard errors, in a group each; on how many rows is told by the run of the job."""
    metrics = coarse(metrics)
    names = {name: name.removesuffix("_se") for name in metrics if name != "rows"}
    return {f"{of}/holdout{'_se' if of != name else ''}": metrics[name] for name, of in names.items()}


def distances(version: Version) -> dict[str, Any]:
    return {"distance/bound": coarse_certificate(version.certificate).get("relative")}


def spent(version: Version, story: Story) -> dict[str, Any]:
    """The cost of a version, and of all in service until then."""
    made: dict[str, Any] = {}
    for what in ("seconds", "backward_passes"):
        made |= {f"cost/{what}": version.cost.get(what), f"cost/{what}_total": story.spent(what)}
    return made


def retrained(version: Version, story: Story) -> dict[str, Any]:
    """A full training as it was measured; at every version, what full trainings would have cost until then."""
    made: dict[str, Any] = {}
    if version.kind is VersionKind.TRAINED:
        made |= measured(version.metrics)
        made |= {f"cost/{what}": version.cost.get(what) for what in ("seconds", "backward_passes")}
    if story.serves(version):
        made |= {f"cost/{what}_total": story.unspent(what) for what in ("seconds", "backward_passes")}
    return made


def frozen(version: Version, story: Story) -> dict[str, Any]:
    """The first version on the holdout of this one."""
    if not story.serves(version):
        return {}
    first = version is story.versions[0]
    return measured(version.metrics if first else (version.evaluation or {}).get("frozen") or {})


def compared(story: Story, version: Version) -> list[Metric]:
    """How far the adapted model was from this full retrain."""
    comparison = story.comparison_of(version)
    if comparison is None or comparison.retrained != version.number:
        return []
    figures = coarse_pair(comparison.figures, version.metrics)
    return points(version, {"distance/disagreement": figures.get("disagreement")})
