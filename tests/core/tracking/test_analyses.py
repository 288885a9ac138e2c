"""MLflow gets rounded aggregates and charts of analyses, and nothing that names an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from core.analyses import records
from core.jobs import queue
from core.models import catalog
from core.tables.analyses import Analysis, AnalysisKind
from core.tables.jobs import Job, JobState
from core.versions.privacy_rounding import coarse
from tests.core.tracking.shown import Shown
from tests.core.tracking.tracked_model import NewTrackedModel, OutboxSender, TrackedModel, cloud
from worker.job_runner import run


def analyse(tracked: TrackedModel, kind: AnalysisKind, request: dict[str, Any]) -> Analysis:
    with tracked.database.write() as session:
        model = catalog.find(session, tracked.name, None, lock=True)
        job = queue.enqueue_analysis(session, model, "somebody", None).id
        records.create(session, model, kind, request, "somebody", job)
    run(OutboxSender(tracked.settings, None), job)  # type: ignore[arg-type]
    with tracked.database.read() as session:
        assert session.get_one(Job, job).state is JobState.SUCCEEDED
        found = records.find_of_job(session, job)
        assert found is not None
        return found


def test_runs_of_analyses_have_rounded_metrics_and_charts_only(
    new_tracked: NewTrackedModel, server: str, client: MlflowClient, tmp_path: Path
) -> None:
    tracked = new_tracked()
    tracked.add(*cloud(200))
    tracked.adapt()
    values = {"parameter": "regularizer.delta", "values": [0.1, 1.0, 10.0], "folds": 4, "by": "example"}
    tuned = analyse(tracked, AnalysisKind.TUNING, values)
    left = analyse(tracked, AnalysisKind.LEAVE_ONE_OUT, {"top": 10})
    tracked.publish(server)
    assert tracked.entries == []
    experiment = Shown(client, tracked.name).experiment().experiment_id
    found = {run.data.params.get("analysis"): run for run in client.search_runs([experiment])}
    metrics, result = found["leave_one_out"].data.metrics, left.result or {}
    assert metrics["metrics/loss"] == coarse(result["metrics"])["loss"] != result["metrics"]["loss"]
    run, result = found["tuning"], tuned.result or {}
    assert float(run.data.params["best"]) == result["best"]
    history = client.get_metric_history(run.info.run_id, "tuning/loss")
    table = {entry["value"]: entry for entry in result["table"]}
    for step, value in enumerate(values["values"]):  # type: ignore[arg-type]
        rounded = coarse({name: number for name, number in table[value].items() if name not in ("value", "fold_se")})
        assert [point.value for point in history if point.step == step] == [rounded["loss"]]
    folder = Path(download_artifacts(run_id=run.info.run_id, dst_path=str(tmp_path), tracking_uri=server))
    [chart] = folder.rglob("*.svg")
    assert b"Cross-validated loss" in chart.read_bytes()
    for run in found.values():
        assert "person-" not in str(run.to_dictionary())
