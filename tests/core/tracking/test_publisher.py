"""What MLflow shows of a model's past, told once and told again."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from sqlalchemy import select

from core.clock import now
from core.jobs import leases
from core.models import catalog
from core.tables.jobs import Job, JobKind, JobState
from core.tables.tracking import TrackingEventKind
from core.tables.versions import Comparison
from core.versions.privacy_rounding import coarse, coarse_pair, decade_above, significant
from tests.core.tracking.shown import Shown
from tests.core.tracking.tracked_model import NewTrackedModel, TrackedModel, cloud, trained
from worker.job_attempt import follow_up

# but for those of `tracked`, which is made before


@pytest.fixture(scope="module")
def tracked(new_tracked: NewTrackedModel, server: str) -> TrackedModel:
    """Trained, adapted, adapted, retrained; a failed job and a cancelled one; all of it told."""
    tracked = new_tracked()
    tracked.add(*cloud(200))
    tracked.adapt()
    for seed in (1, 2):
        tracked.add(*cloud(30, seed, shift=0.5))
        tracked.remove(5)
        tracked.adapt()
    tracked.job(JobKind.RETRAIN, request_id="request-7")
    ended(tracked, JobKind.RETRAIN, JobState.FAILED, {"code": "out_of_memory", "detail": "person-1 is too large"})
    ended(tracked, JobKind.ADAPT, JobState.CANCELLED)
    ended(tracked, JobKind.ADAPT, JobState.SUCCEEDED)  # there was nothing to do
    waiting = len(tracked.entries)
    assert tracked.publish(server) == waiting
    assert tracked.entries == []
    return tracked


@pytest.fixture
def shown(tracked: TrackedModel, client: MlflowClient) -> Shown:
    return Shown(client, tracked.name)


def ended(tracked: TrackedModel, kind: JobKind, state: JobState, error: dict[str, str] | None = None) -> None:
    """A job that came to nothing."""
    job_id = tracked.job(kind, start=False)
    with tracked.database.write() as session:
        job = session.get_one(Job, job_id)
        job.error, job.started_at = error, now() - timedelta(seconds=3)
        model = catalog.find(session, tracked.name, None, lock=True)
        leases.end(job, state, "")
        follow_up(session, job, model)


def test_every_job_that_did_something_or_failed_is_a_run(tracked: TrackedModel, shown: Shown) -> None:
    runs = shown.runs()
    states = {name: run.info.status for name, run in runs.items()}
    assert states == {
        "version 1, trained": "FINISHED",
        "version 2, adapted": "FINISHED",
        "version 3, adapted": "FINISHED",
        "version 4, trained": "FINISHED",
        "retrain, failed": "FAILED",
        "adapt, cancelled": "KILLED",
    }
    jobs = {job.id: job for job in tracked.jobs}
    for run in runs.values():
        job = jobs[run.data.tags["amend.job"]]
        assert job.started_at is not None
        assert job.finished_at is not None
        assert run.info.start_time == int(job.started_at.timestamp() * 1000)
        assert run.info.end_time == int(job.finished_at.timestamp() * 1000)
    assert runs["version 4, trained"].data.tags["amend.request_id"] == "request-7"
    assert runs["retrain, failed"].data.tags["amend.error"] == "out_of_memory"


def test_a_run_shows_the_method_and_the_metrics_of_its_version(tracked: TrackedModel, shown: Shown) -> None:
    version, run = tracked.versions[1], shown.runs()["version 2, adapted"]
    tags, params, metrics = run.data.tags, run.data.params, run.data.metrics
    assert (tags["amend.model"], tags["amend.version"], tags["amend.kind"]) == (tracked.name, "2", "adapt")
    assert (tags["amend.position"], tags["amend.dataset"]) == (str(version.position), f"ledger@{version.position}")
    assert (params["parent"], params["position"], params["method"]) == ("1", str(version.position), "kprior")
    assert (params["solver"], params["memory_size"]) == ("Newton", str(version.memory["size"]))
    assert params["architecture"] == "linear, degree 1"
    for name in ("accuracy", "accuracy_se", "auc", "f1", "loss", "baseline_accuracy", "rows"):
        assert metrics[f"holdout/{name}"] == coarse(version.metrics)[name]
    assert version.certificate is not None
    assert metrics["certificate/relative"] == decade_above(version.certificate.relative)
    assert "certificate/bound" not in metrics
    assert metrics["cost/backward_passes"] == significant(version.cost["backward_passes"], 1)
    assert "Adapted from version 1" in tags["mlflow.note.content"]
    assert shown.figures(run) == {
        "figures/reliability.svg",
        "figures/confusion.svg",
        "figures/roc.svg",
        "figures/precision_recall.svg",
        "figures/adapted_against_retrained.svg",
        "figures/cost_against_retrain.svg",
        "figures/cost_of_versions.svg",
    }


def test_a_run_names_the_examples_that_its_version_reflects(tracked: TrackedModel, shown: Shown) -> None:
    runs, version = shown.runs(), tracked.versions[2]
    adapted, retrained = (runs[n].inputs.dataset_inputs for n in ("version 3, adapted", "version 4, trained"))
    assert len(adapted) == len(retrained) == 1
    assert adapted[0].dataset.digest == retrained[0].dataset.digest == f"ledger@{version.position}"
    assert f"amend:/models/{tracked.name}/ledger@{version.position}" in adapted[0].dataset.source


def test_a_comparison_is_in_the_runs_of_both_versions(tracked: TrackedModel, shown: Shown) -> None:
    with tracked.database.read() as session:
        figures = session.scalars(select(Comparison).where(Comparison.model_id == tracked.model.id)).one().result
    figures = coarse_pair(figures, tracked.versions[3].metrics)
    for name in ("version 3, adapted", "version 4, trained"):
        metrics = shown.runs()[name].data.metrics
        assert metrics["comparison/disagreement"] == figures["disagreement"]
        assert "comparison/weight_distance" not in metrics
        assert metrics["comparison/accuracy_retrained"] == figures["accuracy"]["retrained"]
        assert metrics["comparison/speedup"] == figures["speedup"]


def test_a_comparison_is_a_page_with_all_figures(tracked: TrackedModel, shown: Shown, client: MlflowClient) -> None:
    run, two = shown.runs()["version 4, trained"], tracked.versions[2:]
    assert "figures/comparison.html" in shown.figures(run)
    page = Path(client.download_artifacts(run.info.run_id, "figures/comparison.html")).read_text()
    for said in ("adapted against retrained", "agree on", "AUC", "F1", "log loss", "calibration error", "within"):
        assert said in page
    for version in two:
        assert f"{coarse(version.metrics)['accuracy']:.3f}" in page
    # quality, cost of each version and in total; reliability, confusion, ROC and precision-recall of both
    assert page.count("<svg") == 11
    assert not re.search(r'(src|href)="http', page)


def test_the_descriptions_begin_with_the_answer(tracked: TrackedModel, shown: Shown, client: MlflowClient) -> None:
    position = tracked.versions[2].position
    answer = f"At position {position}, the adapted model (version 3) and a full retrain (version 4) agree on "
    for name in (tracked.name, f"{tracked.name} timeline"):
        note = shown.experiment(name).tags["mlflow.note.content"]
        assert note.startswith(answer)
        assert "2 adaptations took " in note
        assert "retraining each time would have taken about " in note
    assert client.get_registered_model(tracked.name).description.startswith(answer)


def test_the_description_states_that_there_is_no_comparison_yet(
    new_tracked: NewTrackedModel, server: str, client: Any
) -> None:
    tracked = trained(new_tracked)
    tracked.publish(server)
    note = Shown(client, tracked.name).experiment().tags["mlflow.note.content"]
    assert note.startswith("No full retrain has been compared with the adapted model yet.")


def test_the_timeline_has_the_model_adapted_retrained_and_frozen(tracked: TrackedModel, shown: Shown) -> None:
    one, two, three, four = tracked.versions
    at = [v.number for v in (one, two, three)]
    told = {v.number: coarse(v.metrics) for v in tracked.versions}
    adapted = {v.number: coarse(v.metrics)["accuracy"] for v in (one, two, three)}
    assert shown.points("adapted", "accuracy/holdout") == adapted
    assert shown.points("retrained", "ledger/position") == {v.number: v.position for v in tracked.versions}
    constant = {v.number: coarse(v.metrics)["baseline_accuracy"] for v in (one, two, three)}
    assert shown.points("adapted", "accuracy/holdout_baseline") == constant
    assert all(0.5 < auc <= 1 for auc in shown.points("adapted", "auc/holdout").values())
    errors = {v.number: coarse(v.metrics)["accuracy_se"] for v in (one, two, three)}
    assert shown.points("adapted", "accuracy/holdout_se") == errors
    assert shown.points("retrained", "accuracy/holdout") == {
        v.number: coarse(v.metrics)["accuracy"] for v in (one, four)
    }
    frozen = {v.number: coarse((v.evaluation or {})["frozen"])["accuracy"] for v in (one, two, three)}
    assert shown.points("frozen", "accuracy/holdout") == frozen
    assert frozen[at[0]] == told[at[0]]["accuracy"]
    assert list(shown.points("adapted", "distance/bound")) == at
    assert list(shown.points("adapted", "distance/disagreement")) == [four.number]
    seconds = [v.cost["seconds"] for v in (one, two, three)]
    assert shown.points("adapted", "cost/seconds_total")[at[2]] == pytest.approx(sum(seconds))
    assert shown.points("retrained", "cost/seconds_total")[at[2]] == pytest.approx(3 * seconds[0])
    assert {"figures/cost_against_retrain.svg"} < shown.figures(shown.lines()["adapted"])


def test_versions_are_registered_under_their_aliases(tracked: TrackedModel, shown: Shown) -> None:
    numbers = {str(version.number): version.mlflow for version in tracked.versions}
    registered = shown.versions()
    assert registered.keys() == numbers.keys()
    for number, version in registered.items():
        assert numbers[number] == {"run_id": version.run_id, "version": str(version.version)}
        assert version.tags["amend.position"] == str(tracked.versions[int(number) - 1].position)
        assert ("from scratch" in version.description) is (tracked.versions[int(number) - 1].kind == "trained")
    assert shown.aliases() == {"champion": str(registered["3"].version), "reference": str(registered["4"].version)}


def test_the_metrics_of_a_version_are_those_of_its_mlflow_model(tracked: TrackedModel, shown: Shown) -> None:
    models = {model.tags["amend.version"]: model for model in shown.logged_models()}
    assert models.keys() == {"1", "2", "3", "4"}
    metrics = {metric.key: metric.value for metric in models["2"].metrics or []}
    assert metrics["holdout/accuracy"] == coarse(tracked.versions[1].metrics)["accuracy"]


def test_nothing_in_mlflow_contains_an_id_or_a_pickle(
    tracked: TrackedModel, shown: Shown, client: MlflowClient, tmp_path: Path
) -> None:
    assert "person-" not in str(shown.everything())
    files = []
    for run in shown.runs().values():
        files += [Path(client.download_artifacts(run.info.run_id, "", str(tmp_path / run.info.run_id)))]
    for model in shown.logged_models():
        source, to = model.artifact_location, str(tmp_path / model.model_id)
        files += [Path(download_artifacts(artifact_uri=source, dst_path=to, tracking_uri=client.tracking_uri))]
    paths = [path for folder in files for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in paths} <= {".svg", ".html", ".py", ".safetensors", ".yaml", ".txt", ""}
    for path in paths:
        assert b"person-" not in path.read_bytes()
        assert path.suffix == ".py" or b"pickle" not in path.read_bytes()


def test_publishing_twice_creates_no_duplicates(tracked: TrackedModel, shown: Shown, server: str) -> None:
    before = shown.everything()
    for job in tracked.jobs:
        tracked.tell(TrackingEventKind.JOB, job.id)
    tracked.tell(TrackingEventKind.ALIASES)
    assert tracked.publish(server) == len(tracked.jobs) + 1
    after = shown.everything()
    for name, run in before["runs"].items():
        assert after["runs"][name] == run
    assert after == before


def test_an_urgent_model_does_not_wait_for_the_publications_of_others(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient
) -> None:
    other, urgent = trained(new_tracked), trained(new_tracked)
    theirs = [entry.id for entry in other.entries if entry.model == other.name]
    assert urgent.publish(server, alone=True) > 0
    assert [entry.id for entry in urgent.entries] == theirs
    assert len(Shown(client, urgent.name).runs()) == 1
    assert other.publish(server) == len(theirs)
